"""A message came to a worker that does not know its task."""

from __future__ import annotations

from celery_jobs.records import unknown
from celery_jobs.records.states import JobStatus
from celery_jobs.records.unknown import Fate
from tests.records.faces import Face
from tests.records.making import lapse, made, new_worker, record, row, started


def test_the_job_waits_where_another_live_worker_of_its_queue_has_the_task(store: Face):
    job = made(store)  # with a worker
    assert store.write(unknown.settle, job.id, 0) is Fate.waits
    assert row(store, job.id).dispatched_at is None
    assert record(store, job.id).status is JobStatus.pending


def test_it_fails_where_nobody_has_it_and_the_error_names_it(store: Face):
    job = made(store)
    lapse(store, job.runner)
    new_worker(store, "another", tasks=("t",))
    new_worker(store, job.queue, tasks=("other",))
    assert store.write(unknown.settle, job.id, 0) is Fate.failed
    found = record(store, job.id)
    assert found.status is JobStatus.failed
    assert found.error == f"NotRegistered: no live worker of queue {job.queue!r} knows the task 't'"
    assert store.write(unknown.settle, job.id, 0) is Fate.settled


def test_a_message_that_is_out_of_date_decides_nothing(store: Face):
    job, running, waiting = made(store), started(store), made(store, handed_over=False)
    for each, attempt in ((job, 1), (running, 0), (waiting, 0)):
        before = row(store, each.id)
        assert store.write(unknown.settle, each.id, attempt) is Fate.settled
        assert row(store, each.id) == before
