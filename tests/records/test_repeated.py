"""A call whose commit was not answered is repeated inside the server, and takes its own success for one."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from celery_jobs.records import cancel
from celery_jobs.records.errors import JobNotFound, WorkerNotFound
from celery_jobs.records.remote import leaving, reports, workers
from celery_jobs.records.remote.workers import Who
from celery_jobs.records.states import CancelOutcome, TaskStatus
from celery_jobs.records.work import Repeatable
from tests.records.faces import AsyncFace, Face
from tests.records.test_remote import ALICE, LEASE, claim, put, serve

CAROL = Who("carol")  # who submitted


def test_a_repeat_is_made_by_another_call(postgresql_url: str) -> None:
    face = AsyncFace(postgresql_url)
    tries: list[str] = []

    def first(connection: Connection, said: str) -> str:
        tries.append(f"first {said}")
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        connection.execute(text("SELECT 1"))
        raise AssertionError("unreachable")

    def again(_connection: Connection, said: str) -> str:
        tries.append(f"again {said}")
        return said

    work = Repeatable(first, again)
    assert face.write(work, "a") == "a"
    assert face.store.write_for(10.0, work, "b") == "b"
    assert tries == ["first a", "again a", "first b", "again b"]
    face.close()


def test_a_cancelled_task_is_its_repeats_success(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    claim(store)
    answer, done = store.write(reports.cancel_task, task, CAROL, LEASE)
    assert answer.refusal is None
    assert done is not None
    answer, done = store.write(reports.cancel_task.again, task, CAROL, LEASE)
    assert answer.task is not None
    assert answer.task.status is TaskStatus.CANCELLED
    assert done is not None  # so that what follows a cancel is told
    assert done.outcome is CancelOutcome.canceled
    answer, done = store.write(reports.cancel_task, task, CAROL, LEASE)
    assert answer.refusal is not None
    assert done is None


def test_a_repeated_cancel_of_what_ended_otherwise_is_too_late(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    claim(store)
    for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
        store.write(reports.report, task, ALICE, reports.Report(status), LEASE)
    answer, done = store.write(reports.cancel_task.again, task, CAROL, LEASE)
    assert answer.refusal is not None
    assert done is None


def test_a_worker_that_is_gone_was_taken_away_by_the_first_try(store: Face) -> None:
    serve(store)
    assert store.write(leaving.remove, ALICE, LEASE).workers == 1
    assert store.write(leaving.remove.again, ALICE, LEASE).workers == 0
    with pytest.raises(WorkerNotFound):
        store.write(leaving.remove, ALICE, LEASE)
    serve(store)
    with pytest.raises(Exception, match="another identity"):
        store.write(leaving.remove.again, Who("bob", worker_id="alice"), LEASE)
    assert store.write(workers.beat, ALICE, LEASE).id == "alice"


def test_a_hidden_job_was_deleted_by_the_first_try(store: Face) -> None:
    serve(store)
    (task,) = put(store)
    store.write(cancel.delete_job, task)
    store.write(cancel.delete_job.again, task)
    with pytest.raises(JobNotFound):
        store.write(cancel.delete_job, task)
    assert claim(store) is None
