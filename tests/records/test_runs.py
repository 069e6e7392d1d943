"""One run: claimed, reported, finished; late, doubled and lost answers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from celery_jobs.records import cancel, retention, runs, workers
from celery_jobs.records.ids import new_job_id
from celery_jobs.records.record import Progress
from celery_jobs.records.runs import Claim, Ending, Runner
from celery_jobs.records.states import JobStatus
from tests.records import making
from tests.records.faces import Face
from tests.records.making import claim, finish, in_state, made, record, row, started


def test_a_claim_starts_the_first_attempt_in_the_workers_name(store: Face):
    job = made(store)
    taken = runs.claim(store.store, job.id, 0, "token", job.runner, coroutine=True)
    assert taken == Claim(job.id, 1, "token")
    found = record(store, job.id)
    assert (found.status, found.attempt, found.worker) == (JobStatus.running, 1, job.runner.worker)
    assert found.started_at is not None
    assert found.started_at >= found.submitted_at
    stored = row(store, job.id)
    assert (stored.worker_incarnation, stored.worker_pid) == (job.runner.incarnation, job.runner.pid)
    assert (stored.dispatched_at, stored.interruptible) == (None, True)


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.pending])
def test_only_a_pending_job_is_claimed(store: Face, status: JobStatus):
    job = in_state(store, status)
    before = row(store, job.id)
    assert claim(store, job, before.attempt) is None
    assert row(store, job.id) == before


def test_what_was_not_handed_over_or_taken_back_is_not_claimed(store: Face):
    job = made(store, handed_over=False)
    assert claim(store, job) is None
    job = made(store)
    runs.undispatch(store.store, job.id, 0)
    assert claim(store, job) is None
    assert record(store, job.id).status is JobStatus.pending


def test_a_message_of_an_earlier_attempt_claims_nothing(store: Face):
    job = started(store)
    finish(store, job, JobStatus.pending, run_in_seconds=0.0, retries=1)
    making.set_columns(store, job.id, dispatched_at=record(store, job.id).submitted_at)
    assert claim(store, job, attempt=0) is None
    assert claim(store, job, attempt=1) is not None


def test_an_expired_job_is_not_claimed(store: Face):
    job = made(store, expires_in_seconds=60.0)
    making.set_columns(store, job.id, expires_at=record(store, job.id).submitted_at)
    assert claim(store, job) is None


def test_a_worker_without_a_row_claims_nothing(store: Face):
    job = made(store)
    stranger = Runner("dead", uuid4().hex, 1)
    assert runs.claim(store.store, job.id, 0, "token", stranger, coroutine=False) is None


def test_an_unknown_job_is_not_claimed_and_reads_as_none(store: Face):
    job = made(store)
    job.id = making.submit(store, queue=job.queue)
    store.write(cancel.delete_job, job.id)
    store.write(retention.purge_deleted, -10.0, -10.0)
    assert claim(store, job) is None
    assert runs.read_for_claim(store.store, job.id) is None


def test_a_claim_whose_answer_was_lost_is_still_mine(store: Face):
    job = made(store)
    first = runs.claim(store.store, job.id, 0, "token", job.runner, coroutine=False)
    before = row(store, job.id)
    assert runs.claim(store.store, job.id, 0, "token", job.runner, coroutine=False) == first
    assert row(store, job.id) == before


def test_a_completed_run_leaves_its_result(store: Face):
    job = started(store)
    artifact = making.submit(store)
    ended = finish(store, job, result='{"a":1}', artifact_id=artifact)
    assert ended is JobStatus.completed
    found = record(store, job.id)
    assert (found.status, str(found.artifact_id), found.error) == (JobStatus.completed, artifact, None)
    assert found.finished_at is not None
    assert found.started_at is not None
    assert found.finished_at >= found.started_at
    assert row(store, job.id).result == '{"a":1}'


def test_a_failed_run_leaves_its_error(store: Face):
    job = started(store)
    assert (
        finish(store, job, JobStatus.failed, error="ValueError: no", error_traceback="Traceback…") is JobStatus.failed
    )
    found = record(store, job.id)
    assert (found.error, found.error_traceback, row(store, job.id).result) == ("ValueError: no", "Traceback…", None)


def test_a_coroutine_that_was_interrupted_ends_canceled(store: Face):
    job = started(store)
    assert finish(store, job, JobStatus.canceled, error="by itself") is JobStatus.canceled
    assert record(store, job.id).error == "by itself"


@pytest.mark.parametrize("status", [JobStatus.completed, JobStatus.failed, JobStatus.pending, JobStatus.canceled])
def test_a_run_that_was_asked_to_cancel_ends_canceled_whatever_it_came_to(store: Face, status: JobStatus):
    job = in_state(store, JobStatus.canceling)
    fields: dict[str, Any] = {"run_in_seconds": 5.0, "retries": 1} if status is JobStatus.pending else {}
    if status in (JobStatus.completed, JobStatus.failed):
        fields = {"result": "1", "error": "e", "error_traceback": "tb"}
    assert finish(store, job, status, **fields) is JobStatus.canceled
    found = record(store, job.id)
    assert (found.status, found.error, found.error_traceback, found.run_at) == (JobStatus.canceled, None, None, None)
    assert row(store, job.id).result is None


@pytest.mark.parametrize("status", [JobStatus.completed, JobStatus.failed, JobStatus.canceled, JobStatus.pending])
def test_an_end_unless_canceling_leaves_a_run_that_was_asked_to_cancel(store: Face, status: JobStatus):
    fields: dict[str, Any] = {"run_in_seconds": 0.0, "retries": 1} if status is JobStatus.pending else {}
    asked, other = started(store), started(store)
    store.write(cancel.cancel, asked.id)
    before = row(store, asked.id)
    for job, said in ((asked, JobStatus.canceling), (other, status)):
        ended = runs.finish(store.store, job.held, Ending(status, **fields), 0.0, unless_canceling=True)
        assert ended is not None
        assert (ended.status, record(store, job.id).status) == (said, said)
    assert row(store, asked.id) == before
    late = Claim(asked.id, 1, "another")
    assert runs.finish(store.store, late, Ending(status, **fields), 0.0, unless_canceling=True) is None
    assert finish(store, asked, JobStatus.canceled, error="e", error_traceback="t") is JobStatus.canceled
    assert (record(store, asked.id).error, record(store, asked.id).error_traceback) == ("e", "t")


def test_a_retry_waits_again_as_the_same_attempt_and_keeps_its_first_start(store: Face):
    job = started(store)
    first = record(store, job.id)
    assert finish(store, job, JobStatus.pending, run_in_seconds=5.0, retries=3) is JobStatus.pending
    waiting = record(store, job.id)
    assert (waiting.status, waiting.attempt, waiting.finished_at) == (JobStatus.pending, 1, None)
    assert waiting.run_at is not None
    assert waiting.run_at > waiting.submitted_at
    stored = row(store, job.id)
    assert (stored.retries, stored.claim_token, stored.worker_incarnation, stored.dispatched_at) == (
        3,
        None,
        None,
        None,
    )
    assert stored.requeued_at is not None
    making.set_columns(store, job.id, dispatched_at=waiting.submitted_at)
    job.claim = claim(store, job, attempt=1)
    again = record(store, job.id)
    assert (again.attempt, again.started_at) == (2, first.started_at)
    assert row(store, job.id).requeued_at is None


@pytest.mark.parametrize("status", [JobStatus.completed, JobStatus.failed, JobStatus.canceled, JobStatus.pending])
def test_an_end_whose_answer_was_lost_is_answered_again_and_changes_nothing(store: Face, status: JobStatus):
    job = started(store)
    first = finish(store, job, status)
    before = row(store, job.id)
    assert finish(store, job, status) is first is status
    assert row(store, job.id) == before


def test_a_late_report_of_another_run_changes_nothing(store: Face):
    job = started(store)
    late = Claim(job.id, 1, "another token")
    before = row(store, job.id)
    assert runs.finish(store.store, late, Ending(JobStatus.completed), 0.0) is None
    assert runs.progress(store.store, late, "{}") is False
    assert row(store, job.id) == before


def test_a_run_that_the_sweeper_ended_is_no_longer_mine(store: Face):
    job = started(store)
    making.lapse(store, job.runner)
    store.write(workers.bury, job.runner.incarnation)
    before = row(store, job.id)
    assert before.status == JobStatus.failed
    assert finish(store, job) is None
    assert runs.progress(store.store, job.held, "{}") is False
    assert row(store, job.id) == before


def test_a_run_whose_row_is_gone_is_no_longer_mine(store: Face):
    job = started(store)
    job.claim = Claim(new_job_id(), 1, "token")
    assert finish(store, job) is None


def test_progress_shows_in_the_record_and_counts(store: Face):
    job = started(store)
    assert runs.progress(store.store, job.held, '{"current": 1, "total": 4, "message": "ü"}') is True
    assert runs.progress(store.store, job.held, '{"current": 2.5, "total": 4}') is True
    assert record(store, job.id).progress == Progress(current=2.5, total=4)
    assert row(store, job.id).progress_seq == 2


def test_a_canceling_run_may_report_progress_and_an_ended_one_may_not(store: Face):
    job = in_state(store, JobStatus.canceling)
    assert runs.progress(store.store, job.held, '{"current": 1}') is True
    finish(store, job)
    assert runs.progress(store.store, job.held, '{"current": 2}') is False
    assert record(store, job.id).progress == Progress(current=1)


def test_a_new_attempt_starts_without_progress(store: Face):
    job = started(store)
    runs.progress(store.store, job.held, '{"current": 1}')
    finish(store, job, JobStatus.pending, run_in_seconds=0.0, retries=1)
    making.set_columns(store, job.id, dispatched_at=record(store, job.id).submitted_at)
    claim(store, job, attempt=1)
    assert record(store, job.id).progress is None
    assert row(store, job.id).progress_seq == 0


def test_a_worker_reads_its_unfinished_runs_with_their_cancel_marks(store: Face):
    job, ended, elsewhere = started(store), in_state(store, JobStatus.completed), started(store)
    [mine] = runs.own_runs(store.store, job.runner.incarnation)
    assert (mine.job_id, mine.token, mine.pid, mine.status) == (job.id, job.held.token, 4242, JobStatus.running)
    assert (mine.cancel_mode, mine.cancel_age_seconds) == (None, None)
    store.write(cancel.cancel, job.id)
    [mine] = runs.own_runs(store.store, job.runner.incarnation, 4242)
    assert (mine.status, mine.cancel_mode) == (JobStatus.canceling, "wait")
    assert mine.cancel_age_seconds is not None
    assert 0 <= mine.cancel_age_seconds < 60
    assert runs.own_runs(store.store, job.runner.incarnation, 1) == []
    assert runs.own_runs(store.store, ended.runner.incarnation) == []
    assert len(runs.own_runs(store.store, elsewhere.runner.incarnation)) == 1


def test_only_a_pending_job_of_that_attempt_is_taken_back(store: Face):
    job = made(store)
    before = row(store, job.id)
    runs.undispatch(store.store, job.id, 1)
    assert row(store, job.id) == before
    running = started(store)
    before = row(store, running.id)
    runs.undispatch(store.store, running.id, 1)
    assert row(store, running.id) == before
    runs.undispatch(store.store, job.id, 0)
    assert row(store, job.id).dispatched_at is None
