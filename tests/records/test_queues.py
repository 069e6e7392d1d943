"""Limits, pauses and depths."""

from __future__ import annotations

from typing import Any

import pytest

from celery_jobs.records import cancel, queues
from celery_jobs.records.errors import InvalidLimit, QueueNotFound
from celery_jobs.records.record import QueueView
from celery_jobs.records.states import JobStatus
from celery_jobs.records.submit import NewJob, insert_batch
from tests.records.faces import Face
from tests.records.making import in_state, lapse, made, new_worker, submit


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3", 2**31])
def test_a_limit_below_one_or_no_number_is_refused_and_the_old_one_stays(store: Face, value: Any):
    store.write(queues.ensure, ["q"])
    store.write(queues.change, "q", 3)
    with pytest.raises(InvalidLimit):
        store.write(queues.change, "q", value)
    with pytest.raises(InvalidLimit):
        store.write(queues.set_start_limit, "q", value)
    assert store.read(queues.view, "q").max_concurrency == 3


def test_a_value_set_at_run_time_wins_until_it_is_reset(store: Face):
    store.write(queues.set_start_limit, "q", 5)
    assert store.read(queues.view, "q").max_concurrency == 5
    store.write(queues.change, "q", 2)
    store.write(queues.set_start_limit, "q", 6)
    assert store.read(queues.view, "q").max_concurrency == 2
    assert store.write(queues.change, "q", None).max_concurrency is None
    assert store.write(queues.reset_limit, "q").max_concurrency == 6
    store.write(queues.set_start_limit, "q", None)
    assert store.read(queues.view, "q").max_concurrency == 6


def test_changing_one_of_limit_and_pause_leaves_the_other(store: Face):
    store.write(queues.ensure, ["q"])
    store.write(queues.change, "q", 2)
    assert store.write(queues.change, "q", paused=True).max_concurrency == 2
    assert store.write(queues.change, "q", 3).paused is True
    assert store.write(queues.change, "q").paused is True


def test_an_unknown_queue_is_not_found(store: Face):
    for call in (queues.view, queues.reset_limit, queues.change):
        with pytest.raises(QueueNotFound):
            store.write(call, "nowhere")
    with pytest.raises(QueueNotFound):
        store.write(queues.change, "nowhere", 3)


def test_a_queue_shows_its_depth_and_the_live_workers_that_serve_it(store: Face):
    for status in JobStatus:
        job = in_state(store, status)
        submit(store, queue=job.queue)
        counts = {name: int(status == name) for name in ("running", "canceling")}
        pending = 2 if status is JobStatus.pending else 1
        lapse(store, new_worker(store, job.queue))
        expected = QueueView(name=job.queue, max_concurrency=None, paused=False, pending=pending, workers=1, **counts)
        assert store.read(queues.view, job.queue) == expected


def test_deleted_but_running_jobs_still_count(store: Face):
    job = in_state(store, JobStatus.running)
    store.write(queues.change, job.queue, 1)
    store.write(cancel.delete_job, job.id)
    assert store.read(queues.view, job.queue).canceling == 1


def test_all_queues_are_listed_by_name(store: Face):
    store.write(queues.ensure, ["b", "a", "b"])
    store.write(queues.ensure, ["a"])
    assert [view.name for view in store.read(queues.views)] == ["a", "b"]


def test_queues_that_only_a_waiting_job_names_get_a_row(store: Face):
    job = made(store, handed_over=False)
    store.write(insert_batch, [NewJob("t", "unheard")])
    assert store.read(queues.unnamed) == ["unheard"]
    store.write(queues.ensure, ["unheard"])
    assert store.read(queues.unnamed) == []
    assert [view.name for view in store.read(queues.views)] == sorted([job.queue, "unheard"])
