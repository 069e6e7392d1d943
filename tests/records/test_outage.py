"""PostgreSQL down, frozen or restarted: who waits, who is answered, and that nothing needs a hand afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text

from celery_jobs.records import reads, runs
from celery_jobs.records.errors import DatabaseUnavailable, JobNotFound
from celery_jobs.records.ids import new_job_id
from celery_jobs.records.record import JobFilter
from celery_jobs.records.runs import Claim, Ended, Ending
from celery_jobs.records.states import JobStatus
from celery_jobs.records.store import Store
from celery_jobs.records.submit import NewJob, Submitted, insert_batch
from tests.records.conftest import migrate
from tests.records.faces import AsyncFace, Face
from tests.records.making import made, record, row, started
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer().serving() as server:
        yield server


@pytest.fixture
def face(server: PostgresServer) -> Iterator[Face]:
    """The sync face, for making and looking."""
    face = Face(server.new_database(migrate))
    yield face
    face.close()


@pytest.fixture
def async_face(face: Face) -> Iterator[AsyncFace]:
    made = AsyncFace(face.url)
    yield made
    made.close()


def answered(call: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """The answer or the error, and how long it took."""
    begun = time.monotonic()
    try:
        answer = call(*args)
    except Exception as error:
        answer = error
    return answer, time.monotonic() - begun


def calls_at_once(face: Face, number: int, task: str = "t") -> list[tuple[Any, float]]:
    """Half reads, half submits, more than the pool has connections."""
    with ThreadPoolExecutor(2 * number) as pool:
        reading = [pool.submit(answered, face.read, reads.page, JobFilter(), 10, None) for _ in range(number)]
        writing = [pool.submit(answered, face.write, insert_batch, [NewJob(task, "jobs")]) for _ in range(number)]
        return [each.result() for each in (*reading, *writing)]


def works(face: Face) -> bool:
    return all(not isinstance(answer, Exception) for answer, _ in calls_at_once(face, 8))


def test_while_the_server_is_frozen_async_calls_are_answered_in_5_s_and_later_work(
    server: PostgresServer, async_face: AsyncFace
):
    assert works(async_face)
    server.pause()
    try:
        answers = calls_at_once(async_face, 10, "frozen") + calls_at_once(async_face, 2, "frozen")
    finally:
        server.resume()
    assert {type(answer) for answer, _ in answers} == {DatabaseUnavailable}
    assert max(seconds for _, seconds in answers) < 5
    wait_until(lambda: works(async_face), "all calls work again", 10)
    # what was answered with an error was not stored all the same
    assert async_face.read(reads.page, JobFilter(task="frozen"), 10, None) == ([], None)


def test_while_the_server_is_down_async_calls_are_answered_and_later_work(
    server: PostgresServer, async_face: AsyncFace
):
    assert works(async_face)
    server.kill9()
    try:
        answers = calls_at_once(async_face, 10)
    finally:
        server.start()
    assert {type(answer) for answer, _ in answers} == {DatabaseUnavailable}
    assert max(seconds for _, seconds in answers) < 5
    assert works(async_face)


def test_a_restart_between_two_calls_is_not_noticed(server: PostgresServer, async_face: AsyncFace):
    assert works(async_face)
    server.restart()
    assert works(async_face)


def test_a_store_without_patience_answers_at_once_and_one_with_it_waits(server: PostgresServer, face: Face):
    patient = Store(face.url, patience_seconds=60)
    job = NewJob("t", "jobs")
    server.kill9()
    try:
        answer, seconds = answered(face.read, reads.record, job.id)
        assert (type(answer), seconds < 5) == (DatabaseUnavailable, True)
        with ThreadPoolExecutor(3) as pool:
            writing = pool.submit(patient.write, insert_batch, [job])
            finding = pool.submit(answered, patient.read, reads.record, new_job_id())
            bounded = pool.submit(answered, face.store.write_for, 0.3, insert_batch, [job])
            assert isinstance(bounded.result()[0], DatabaseUnavailable)
            assert not writing.done()
            server.start()
            assert writing.result(60) == [Submitted(job.id)]
            assert isinstance(finding.result(60)[0], JobNotFound)
    finally:
        if not server.process.running:
            server.start()
        patient.close()
    assert record(face, job.id).status is JobStatus.pending


def test_a_frozen_server_is_waited_for_by_a_worker(server: PostgresServer, face: Face):
    job = started(face)
    server.pause()
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(runs.finish, face.store, job.held, Ending(JobStatus.completed), 60.0)
        server.resume()
        assert ending.result(60) == Ended(JobStatus.completed)
    assert record(face, job.id).status is JobStatus.completed


class AnswerLost:
    """Cuts the connection after the first commit and before its answer, as a crash of the network does."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = 0
        self._first = store._one
        monkeypatch.setattr(store, "_one", self.one)

    def one(self, *args: Any) -> Any:
        row = self._first(*args)
        if self.lost == 0:
            self.lost += 1
            raise ConnectionError("cut after the commit")
        return row


def test_a_claim_whose_commit_was_not_answered_is_made_once(face: Face, monkeypatch: pytest.MonkeyPatch):
    job = made(face)
    face.store.patience_seconds = 30
    lost = AnswerLost(face.store, monkeypatch)
    assert runs.claim(face.store, job.id, 0, "mine", job.runner, coroutine=False) == Claim(job.id, 1, "mine")
    assert lost.lost == 1
    assert (row(face, job.id).attempt, row(face, job.id).version) == (1, 1)
    assert runs.claim(face.store, job.id, 0, "another", job.runner, coroutine=False) is None


@pytest.mark.parametrize("status", [JobStatus.completed, JobStatus.failed, JobStatus.pending])
def test_an_end_whose_commit_was_not_answered_is_written_once(
    face: Face, monkeypatch: pytest.MonkeyPatch, status: JobStatus
):
    job = started(face)
    lost = AnswerLost(face.store, monkeypatch)
    assert runs.finish(face.store, job.held, Ending(status), 30.0) == Ended(status)
    assert lost.lost == 1
    assert row(face, job.id).version == 2


def test_a_fault_of_the_call_is_no_outage(face: Face, async_face: AsyncFace):
    for each in (face, async_face):
        answer, _ = answered(each.write, lambda connection: connection.execute(text("SELECT * FROM nowhere")))
        assert type(answer).__name__ == "ProgrammingError"


def test_a_deadlock_is_resolved_by_another_try(face: Face):
    first, second = (made(face, handed_over=False).id for _ in range(2))
    both_hold = threading.Barrier(2)
    tries: list[str] = []

    def lock(connection: Connection, *ids: str) -> None:
        tries.append(ids[0])
        for job_id in ids:
            connection.execute(text("UPDATE jobs SET version = version + 1 WHERE id = :id"), {"id": job_id})
            if job_id == ids[0] and len(tries) <= 2:
                both_hold.wait(20)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda ids: face.store.write_for(30.0, lock, *ids), [(first, second), (second, first)]))
    assert len(tries) == 3
    assert row(face, first).version == row(face, second).version == 2


def test_the_async_face_tries_a_deadlocks_victim_and_a_cut_connection_once_more(async_face: AsyncFace):
    faults = ["40P01", "57P01"]
    tries: list[int] = []

    def victim(connection: Connection, state: str) -> int:
        tries.append(1)
        if len(tries) % 2:
            if state == "57P01":
                connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION SQLSTATE '{state}'; END $$"))
        return connection.execute(text("SELECT 1")).scalar_one()

    assert [async_face.write(victim, state) for state in faults] == [1, 1]
    assert [async_face.read(victim, state) for state in faults] == [1, 1]
    assert len(tries) == 8
