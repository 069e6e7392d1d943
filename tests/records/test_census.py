"""The numbers behind the metrics: how many jobs there are, how long each waited, and how long cancels took."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from celery_jobs.records import cancel, census, queues, reads, runs, workers
from celery_jobs.records.census import Counts
from celery_jobs.records.clock import from_now
from celery_jobs.records.record import JobFilter
from celery_jobs.records.runs import Ended, Ending
from celery_jobs.records.states import JobStatus
from tests.records import making
from tests.records.faces import Face
from tests.records.making import claim, finish, in_state, made, record, started, submit

S = JobStatus
AN_HOUR = 3600.0


def all_finished(store: Face) -> tuple[Counts, int]:
    """Counted part by part, and in how many parts."""
    total: Counts = Counter()
    parts, after = 0, None
    while True:
        part, after = store.read(census.finished, after)
        total.update(part)
        parts += 1
        if after is None:
            return total, parts


def test_the_census_counts_what_the_list_shows(store: Face, monkeypatch: pytest.MonkeyPatch):
    jobs = [in_state(store, status) for status in JobStatus for _ in range(2)]
    submit(store, queue="several")
    submit(store, queue="several")
    hidden = [in_state(store, status) for status in JobStatus]
    for job in hidden:
        store.write(cancel.delete_job, job.id)
    listed = Counter((record.queue, record.status) for record in store.read(reads.page, JobFilter(), 100, None)[0])
    assert len(listed) == len(jobs) + 1
    monkeypatch.setattr(census, "ROWS_PER_PART", 3)
    finished, parts = all_finished(store)
    assert parts > 3
    assert +store.read(census.unfinished) + finished == listed


def test_the_census_of_nothing_has_a_zero_for_every_queue(store: Face):
    assert all_finished(store) == (Counter(), 1)
    store.write(queues.ensure, ["a"])
    assert store.read(census.unfinished) == {("a", S.pending): 0, ("a", S.running): 0, ("a", S.canceling): 0}


def test_a_part_without_jobs_is_no_end(store: Face, monkeypatch: pytest.MonkeyPatch):
    first, *_, last = [in_state(store, S.completed) for _ in range(6)]
    seqs = [making.row(store, job.id).seq for job in (first, last)]
    monkeypatch.setattr(census, "ROWS_PER_PART", 1)
    assert all_finished(store)[1] == seqs[1] - seqs[0] + 1


def long_ago(store: Face, job: making.Made, **columns: Any) -> None:
    making.set_columns(store, job.id, submitted_at=from_now(-AN_HOUR), **columns)


def waited(store: Face, job: making.Made, attempt: int = 0) -> float:
    taken = claim(store, job, attempt)
    assert taken is not None
    assert taken.queue == job.queue
    assert taken.waited_seconds is not None
    job.claim = taken
    return taken.waited_seconds


def test_a_job_waits_from_its_submit_to_its_claim(store: Face):
    job = made(store)
    long_ago(store, job)
    assert AN_HOUR <= waited(store, job) < AN_HOUR + 60


def test_a_job_does_not_wait_before_it_may_run(store: Face):
    job = made(store)
    long_ago(store, job, run_at=from_now(-60.0))
    assert 60 <= waited(store, job) < 120
    job = made(store)
    long_ago(store, job, run_at=from_now(-2 * AN_HOUR))
    assert AN_HOUR <= waited(store, job) < AN_HOUR + 60


@pytest.mark.parametrize("how", ["retry", "loss", "shutdown"])
def test_a_job_waits_anew_when_its_run_ended(store: Face, how: str):
    job = started(store, retry_on_worker_lost=True)
    long_ago(store, job)
    if how == "retry":
        finish(store, job, S.pending, run_in_seconds=0.0)
    else:
        end = workers.cancel_for_shutdown if how == "shutdown" else workers.bury
        options = {} if how == "shutdown" else {"known_dead": True}
        assert store.write(end, job.runner.incarnation, **options) == [job.id]
        job.runner = making.new_worker(store, job.queue)
    assert [out.id for out in store.write(making.admission.admit, job.queue)] == [job.id]
    assert 0 <= waited(store, job, attempt=1) < 60


def test_the_end_of_a_canceled_run_tells_how_long_the_cancel_took(store: Face):
    job = started(store, interruptible=True)
    store.write(cancel.cancel, job.id)
    making.set_columns(store, job.id, cancel_requested_at=from_now(-60.0))
    for _ in range(2):  # the second time as if the first answer was lost
        ended = runs.finish(store.store, job.held, Ending(S.completed, result="1"), 0.0)
        assert ended is not None
        assert (ended.status, ended.cancel_mode) == (S.canceled, "wait")
        assert ended.cancel_seconds is not None
        assert 60 <= ended.cancel_seconds < 120


@pytest.mark.parametrize("status", [S.completed, S.failed, S.canceled, S.pending])
def test_an_end_that_nobody_asked_for_tells_of_no_cancel(store: Face, status: JobStatus):
    job = started(store)
    assert runs.finish(store.store, job.held, Ending(status), 0.0) == Ended(status)


def test_cancels_that_others_end_are_found_by_their_jobs(store: Face):
    asked, other = started(store), started(store)
    store.write(cancel.cancel, asked.id)
    making.set_columns(store, asked.id, cancel_requested_at=from_now(-60.0))
    for job in (asked, other):
        store.write(workers.bury, job.runner.incarnation, known_dead=True)
    assert record(store, other.id).status is S.failed
    [(mode, seconds)] = store.read(census.cancel_times, [asked.id, other.id])
    assert mode == "wait"
    assert 60 <= seconds < 120


def test_a_cancel_or_delete_that_ends_a_job_at_once_says_so_once(store: Face):
    job = made(store)
    assert [store.write(cancel.cancel, job.id).at_once for _ in range(2)] == [True, False]
    assert store.write(cancel.delete_job, job.id).at_once is False
    assert store.write(cancel.delete_job, made(store).id).at_once is True
    running = started(store)
    assert store.write(cancel.cancel, running.id).at_once is False
    assert store.write(cancel.delete_job, running.id).at_once is False
