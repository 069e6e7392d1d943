"""Cancelling, deleting, expiring: what the record decides."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from celery_jobs.records import admission, adopt, cancel, reads, retention, workers
from celery_jobs.records.clock import now
from celery_jobs.records.errors import ForceImpossible, JobNotFound
from celery_jobs.records.ids import job_id_of, new_job_id
from celery_jobs.records.states import TERMINAL, CancelMode, CancelOutcome, JobStatus
from tests.records import making
from tests.records.faces import Face
from tests.records.making import claim, finish, in_state, made, record, row, started

# every way to reach a job by its id
_CALLS: tuple[Callable[..., object], ...] = (cancel.cancel, cancel.delete_job, reads.record, reads.result)


def test_a_pending_job_is_canceled_at_once_and_never_starts(store: Face):
    job = made(store)
    answer = store.write(cancel.cancel, job.id)
    assert (answer.outcome, answer.record.status) == (CancelOutcome.canceled, JobStatus.canceled)
    found = record(store, job.id)
    assert found == answer.record
    assert (found.started_at, found.attempt) == (None, 0)
    assert found.finished_at is not None
    assert found.cancel_requested_at is not None
    assert claim(store, job) is None


def test_a_job_that_waits_for_its_retry_is_canceled_at_once(store: Face):
    job = started(store)
    finish(store, job, JobStatus.pending, run_in_seconds=60.0, retries=1)
    assert store.write(cancel.cancel, job.id).outcome is CancelOutcome.canceled


def test_a_running_job_is_canceling_until_its_code_ends(store: Face):
    job = started(store)
    answer = store.write(cancel.cancel, job.id)
    assert (answer.outcome, answer.worker) == (CancelOutcome.requested, job.runner.worker)
    assert (answer.record.status, answer.record.finished_at) == (JobStatus.canceling, None)
    assert answer.record.cancel_mode is CancelMode.wait
    assert finish(store, job) is JobStatus.canceled


def test_a_coroutine_is_to_be_interrupted_also_when_force_was_asked(store: Face):
    job = made(store, interruptible=True)
    job.claim = making.runs.claim(store.store, job.id, 0, "token", job.runner, coroutine=True)
    assert store.write(cancel.cancel, job.id, force=True).record.cancel_mode is CancelMode.interrupt


def test_force_on_a_pending_job_is_a_plain_cancel(store: Face):
    answer = store.write(cancel.cancel, made(store).id, force=True)
    assert (answer.outcome, answer.record.cancel_mode) == (CancelOutcome.canceled, CancelMode.wait)


def test_force_on_a_running_function_is_recorded_also_when_it_comes_later(store: Face):
    at_once, later = started(store, pool="prefork"), started(store, pool="prefork")
    assert store.write(cancel.cancel, at_once.id, force=True).record.cancel_mode is CancelMode.force
    first = store.write(cancel.cancel, later.id).record
    second = store.write(cancel.cancel, later.id, force=True).record
    assert (first.cancel_mode, second.cancel_mode) == (CancelMode.wait, CancelMode.force)
    assert second.cancel_requested_at == first.cancel_requested_at


def test_a_plain_cancel_after_force_does_not_weaken_it(store: Face):
    job = started(store, pool="prefork")
    store.write(cancel.cancel, job.id, force=True)
    assert store.write(cancel.cancel, job.id).record.cancel_mode is CancelMode.force


@pytest.mark.parametrize("status", [JobStatus.running, JobStatus.canceling])
def test_force_on_a_function_in_a_pool_of_threads_is_refused_and_changes_nothing(store: Face, status: JobStatus):
    job = in_state(store, status)
    before = row(store, job.id)
    with pytest.raises(ForceImpossible):
        store.write(cancel.cancel, job.id, force=True)
    assert row(store, job.id) == before


@pytest.mark.parametrize("status", [JobStatus.canceling, JobStatus.canceled])
def test_repeating_a_cancel_is_fine_and_changes_nothing(store: Face, status: JobStatus):
    job = in_state(store, status)
    before = row(store, job.id)
    answer = store.write(cancel.cancel, job.id)
    expected = CancelOutcome.canceled if status is JobStatus.canceled else CancelOutcome.requested
    assert answer.outcome is expected
    assert row(store, job.id) == before


@pytest.mark.parametrize("status", [JobStatus.completed, JobStatus.failed])
@pytest.mark.parametrize("force", [False, True])
def test_it_is_too_late_for_an_ended_job(store: Face, status: JobStatus, force: bool):
    job = in_state(store, status)
    before = row(store, job.id)
    answer = store.write(cancel.cancel, job.id, force=force)
    assert (answer.outcome, answer.record.status) == (CancelOutcome.too_late, status)
    assert row(store, job.id) == before


def test_what_was_published_to_a_foreign_worker_is_canceling(store: Face):
    job = made(store)
    making.set_columns(store, job.id, kind="foreign")
    assert store.write(cancel.cancel, job.id).outcome is CancelOutcome.requested
    assert record(store, job.id).status is JobStatus.canceling
    waiting = made(store, handed_over=False)
    making.set_columns(store, waiting.id, kind="foreign")
    assert store.write(cancel.cancel, waiting.id).outcome is CancelOutcome.canceled


def test_an_unknown_job_is_not_found(store: Face):
    for call in _CALLS:
        with pytest.raises(JobNotFound):
            store.write(call, new_job_id())


@pytest.mark.parametrize("status", list(JobStatus))
def test_a_deleted_job_is_gone_for_every_reader(store: Face, status: JobStatus):
    job = in_state(store, status)
    deleted = store.write(cancel.delete_job, job.id)
    executing = status in (JobStatus.running, JobStatus.canceling)
    assert (deleted.executing, deleted.worker) == (
        executing,
        None if status is JobStatus.pending else job.runner.worker,
    )
    for call in _CALLS:
        with pytest.raises(JobNotFound):
            store.write(call, job.id)
    assert row(store, job.id).status in ({JobStatus.canceling} if executing else TERMINAL)


def test_deleting_a_running_job_hides_it_and_its_code_ends_canceled(store: Face):
    job = started(store)
    store.write(cancel.delete_job, job.id)
    assert finish(store, job, result="1") is JobStatus.canceled


def test_a_delete_names_the_run_as_its_worker_knows_it(store: Face):
    celery_id = str(uuid4())
    job_id = job_id_of(celery_id)
    message = adopt.Adopted(job_id, celery_id, "t", "jobs", "[]", "{}", 0, None, None, False, 3)
    store.write(adopt.adopt, message)
    assert store.write(cancel.delete_job, job_id).celery_id == celery_id
    ours = started(store)
    assert store.write(cancel.delete_job, ours.id).celery_id == ours.id


def test_a_deleted_pending_job_never_starts(store: Face):
    job = made(store)
    store.write(cancel.delete_job, job.id)
    assert claim(store, job) is None
    assert store.write(admission.admit, job.queue) == []


def test_a_deleted_running_job_is_not_run_again_when_its_worker_dies(store: Face):
    job = started(store, retry_on_worker_lost=True)
    store.write(cancel.delete_job, job.id)
    making.lapse(store, job.runner)
    assert store.write(workers.bury, job.runner.incarnation) == [job.id]
    assert row(store, job.id).status == JobStatus.canceled


def test_waiting_jobs_expire_with_a_reason_and_started_ones_do_not(store: Face):
    waiting, running, fresh = made(store), started(store), made(store)
    for job in (waiting, running):
        store.write(lambda c, job_id=job.id: c.execute(making.update(making.jobs).where(
            making.jobs.c.id == job_id).values(expires_at=now())))  # fmt: skip
    assert store.write(cancel.expire) == [waiting.id]
    found = record(store, waiting.id)
    assert found.status is JobStatus.canceled
    assert found.error is not None
    assert found.error.startswith("expired")
    assert record(store, running.id).status is JobStatus.running
    assert record(store, fresh.id).status is JobStatus.pending
    assert store.write(cancel.expire) == []


def test_hidden_rows_go_when_they_have_ended_and_nothing_can_arrive_any_more(store: Face):
    executing, ended, foreign, visible = (in_state(store, JobStatus.running), made(store), made(store), made(store))
    making.set_columns(store, foreign.id, kind="foreign")
    for job in (executing, ended, foreign):
        store.write(cancel.delete_job, job.id)
    assert store.write(retention.purge_deleted, 60.0, 60.0) == 0
    assert store.write(retention.purge_deleted, -1.0, 60.0) == 1
    assert row(store, ended.id) is None
    assert store.write(retention.purge_deleted, -1.0, -1.0) == 1
    assert row(store, foreign.id) is None
    assert row(store, executing.id) is not None
    assert row(store, visible.id) is not None


def test_a_flood_of_expired_jobs_is_canceled_in_batches(store: Face):
    batch = [making.NewJob("t", "jobs", expires_in_seconds=-60.0 - number) for number in range(5)]
    store.write(making.insert_batch, batch)
    assert sorted(store.write(cancel.expire, 3)) == sorted(job.id for job in batch[2:])  # the oldest first
    assert sorted(store.write(cancel.expire, 3)) == sorted(job.id for job in batch[:2])
    assert store.write(cancel.expire, 3) == []
