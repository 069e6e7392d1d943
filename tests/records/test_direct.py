"""Claims and reports that go by PostgreSQL's driver itself say what they say by any other way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from celery_jobs.records import cancel
from celery_jobs.records.errors import InvalidTaskTransition, NotAllowed, WorkerNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.remote import claims, reports, tasks, workers
from celery_jobs.records.remote.reports import Answer, Report
from celery_jobs.records.remote.workers import Who
from celery_jobs.records.states import TaskStatus
from tests.records.faces import AsyncFace
from tests.records.test_remote import ALICE, BOB, LEASE, put, serve

_T = TaskStatus


@pytest.fixture
def store(postgresql_url: str) -> Iterator[AsyncFace]:
    face = AsyncFace(postgresql_url)
    serve(face)
    yield face
    face.close()


def claim(store: AsyncFace, who: Who = ALICE) -> Any:
    store.write(workers.renew_many, [], LEASE)  # a database that has not answered for a while is asked another way
    return store.wait_for(store.async_store.write_usual(claims.claim, who, LEASE))


def report(store: AsyncFace, task: JobId, said: Report, who: Who = ALICE) -> Answer:
    store.write(workers.renew_many, [], LEASE)
    return store.wait_for(store.async_store.write_usual(reports.report, task, who, said, LEASE))


def test_a_task_goes_its_way(store: AsyncFace) -> None:
    (task,) = put(store)
    claimed = claim(store)
    assert (claimed.id, claimed.status, claimed.worker_id) == (task, _T.CLAIMED, "alice")
    assert claim(store) is None
    running = report(store, task, Report(_T.RUNNING)).task
    assert running is not None
    assert running.started_at is not None
    assert running.started_at.utcoffset() is not None
    ended = report(store, task, Report(_T.COMPLETED, result='"\\u0000é"')).task
    assert ended is not None
    assert ended == store.read(tasks.task, task)
    assert ended.result_json == '"\\u0000é"'


def test_the_odd_cases_are_looked_at(store: AsyncFace) -> None:
    (task,) = put(store)
    with pytest.raises(WorkerNotFound):
        claim(store, BOB)
    with pytest.raises(NotAllowed):
        claim(store, Who("bob", worker_id="alice"))
    claim(store)
    assert isinstance(report(store, task, Report(_T.RUNNING), BOB).refusal, NotAllowed)
    assert isinstance(report(store, task, Report(_T.COMPLETED)).refusal, InvalidTaskTransition)
    store.write(cancel.cancel, task)
    other = put(store)[0]
    claim(store)
    assert report(store, other, Report(_T.RUNNING)).cancelled_task_ids == [task]


def test_a_connection_that_was_cut_is_replaced(store: AsyncFace) -> None:
    put(store)
    claim(store)
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
    store.write(lambda connection: connection.execute(text(f"{others} pg_backend_pid()")).all())
    assert claim(store) is None
    (task,) = put(store)
    assert claim(store).id == task


def test_a_report_whose_answer_was_lost_is_no_refusal(store: AsyncFace) -> None:
    (task,) = put(store)
    claim(store)
    said = Report(_T.RUNNING)
    assert report(store, task, said).task is not None
    assert isinstance(report(store, task, said).refusal, InvalidTaskTransition), "said twice by its worker"
    again = store.write(reports.report.again, task, ALICE, said, LEASE)
    assert again.task is not None
    assert again.task.status is _T.RUNNING
    for who, wanted in ((BOB, said), (ALICE, Report(_T.RUNNING)), (ALICE, Report(_T.FAILED))):
        answer = store.write(reports.report.again, task, who, wanted, LEASE)
        assert (answer.task is None) == (who is BOB)


def test_an_admin_reports_for_the_worker_that_it_claimed_for(store: AsyncFace) -> None:
    (task,) = put(store)
    root = Who("root", admin=True, worker_id="alice")
    claim(store, root)
    assert report(store, task, Report(_T.RUNNING), root).task is not None


def test_an_odd_worker_id_is_nobodys(store: AsyncFace) -> None:
    (task,) = put(store)
    claim(store)
    odd = Who("alice", worker_id="\x00")
    assert isinstance(report(store, task, Report(_T.RUNNING), odd).refusal, NotAllowed)
