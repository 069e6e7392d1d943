"""SQLite's one writer of a process: calls share a commit, and none harms another."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import wait
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from celery_jobs.records import changes
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.sqlite_writer import SqliteWriter
from celery_jobs.records.store import AsyncStore, Store
from celery_jobs.records.submit import NewJob, insert_batch
from celery_jobs.records.tables import jobs
from tests.support.waiting import wait_until


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    made = Store(sqlite_url)
    yield made
    made.close()


@pytest.fixture
def writer(store: Store) -> SqliteWriter:
    assert store.writer is not None
    return store.writer


@contextmanager
def held_lock(url: str) -> Generator[sqlite3.Connection]:
    """Another process writes; its lock ends with the block."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        connection.close()


def add(connection: Connection) -> None:
    insert_batch(connection, [NewJob("t", "jobs")])


def add_and_fail(connection: Connection) -> None:
    add(connection)
    raise KeyError("mine")


def add_twice(connection: Connection) -> None:
    add(connection)
    connection.execute(jobs.insert().values(id=None))


def without_id(connection: Connection) -> None:
    connection.execute(jobs.insert().values(id=None))


def number_of_jobs(store: Store) -> int:
    return store.read(lambda connection: connection.execute(select(func.count()).select_from(jobs)).scalar_one())


def test_calls_that_gathered_share_one_commit(sqlite_url: str, store: Store, writer: SqliteWriter):
    with held_lock(sqlite_url):
        futures = [writer.submit(add) for _ in range(50)]
    wait(futures, 30)
    assert number_of_jobs(store) == 50
    marks = store.read(lambda connection: set(connection.execute(select(jobs.c.change)).scalars()))
    assert len(marks) <= 2  # the first call may have begun alone


def test_a_failing_call_undoes_itself_and_no_other(sqlite_url: str, store: Store, writer: SqliteWriter):
    with held_lock(sqlite_url):
        futures = [writer.submit(call) for call in (add, add_and_fail, add, add_twice, add)]
    assert isinstance(futures[1].exception(30), KeyError)
    assert isinstance(futures[3].exception(30), IntegrityError)
    assert [futures[index].result(30) for index in (0, 2, 4)] == [None, None, None]
    assert number_of_jobs(store) == 3


def test_a_failing_statement_undoes_itself_and_no_other(sqlite_url: str, store: Store, writer: SqliteWriter):
    with held_lock(sqlite_url):
        futures = [writer.submit(call, one_statement=True) for call in (add, without_id, add)]
    assert isinstance(futures[1].exception(30), IntegrityError)
    wait(futures, 30)
    assert number_of_jobs(store) == 2


def test_a_failing_call_alone_undoes_itself(store: Store, writer: SqliteWriter):
    assert isinstance(writer.submit(add_and_fail).exception(30), KeyError)
    assert number_of_jobs(store) == 0
    store.write(add)
    assert number_of_jobs(store) == 1


def test_the_lock_of_another_process_is_waited_for(sqlite_url: str, store: Store, writer: SqliteWriter):
    with held_lock(sqlite_url) as other:
        future = writer.submit(add)
        other.execute("DELETE FROM queues")
        assert not future.done()
        other.execute("COMMIT")
        future.result(30)
    assert number_of_jobs(store) == 1


def test_a_waiter_that_gave_up_is_taken_out(sqlite_url: str, store: Store, writer: SqliteWriter):
    with held_lock(sqlite_url):
        given_up, kept = writer.submit(add_and_fail), writer.submit(add)
        assert given_up.cancel()
    kept.result(30)
    assert number_of_jobs(store) == 1


async def test_an_async_caller_is_answered_while_the_lock_is_held_and_its_call_is_taken_out(
    sqlite_url: str, store: Store, writer: SqliteWriter, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("celery_jobs.records.doubt.ANSWER_WITHIN_SECONDS", 0.2)
    face = AsyncStore(store)
    with held_lock(sqlite_url):
        with pytest.raises(DatabaseUnavailable):
            await face.write(add)
        writing = asyncio.create_task(face.write(add))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert (
            await face.read(lambda connection: connection.execute(select(func.count()).select_from(jobs)).scalar()) == 0
        )
    monkeypatch.undo()
    await face.write(add)
    assert number_of_jobs(store) == 1
    await face.close()


def test_a_busy_database_is_an_outage_that_a_patient_store_waits_out(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("celery_jobs.records.engine.LOCK_TIMEOUT_SECONDS", 0.05)
    hasty, patient = Store(sqlite_url), Store(sqlite_url, patience_seconds=60)
    with held_lock(sqlite_url):
        with pytest.raises(DatabaseUnavailable):
            hasty.write(add)
        waiting = threading.Thread(target=patient.write, args=(add,))
        waiting.start()
    waiting.join(30)
    assert number_of_jobs(hasty) == 1
    hasty.close()
    patient.close()


def test_a_writer_closes_after_its_last_call_and_may_be_used_again(store: Store, writer: SqliteWriter):
    futures = [writer.submit(add) for _ in range(300)]
    writer.close()
    wait_until(lambda: all(future.done() for future in futures), "what was submitted is written", 20)
    assert number_of_jobs(store) == 300
    wait_until(lambda: all(thread.name != "sqlite-writer" for thread in threading.enumerate()), "the thread has ended")
    store.write(add)
    assert number_of_jobs(store) == 301


def test_submits_race_with_closing_and_none_is_lost(store: Store, writer: SqliteWriter):
    done = threading.Event()

    def keep_closing() -> None:
        while not done.is_set():
            writer.close()

    closing = threading.Thread(target=keep_closing)
    closing.start()
    futures = [writer.submit(add) for _ in range(200)]
    not_done = wait(futures, 60).not_done
    done.set()
    closing.join()
    assert not not_done
    assert number_of_jobs(store) == 200


def test_each_transaction_has_a_mark_of_its_own(store: Store):
    store.write(add)
    first = store.read(changes.mark_now)
    store.write(add)
    marks = store.read(lambda connection: list(connection.execute(select(jobs.c.change)).scalars()))
    assert marks == [first - 1, first]


def test_a_forked_child_has_its_own_writer_and_the_parent_goes_on(sqlite_url: str, store: Store):
    store.write(add)
    pid = os.fork()
    if pid == 0:
        try:
            Store(sqlite_url).write(add)  # the parent's stays open and unused
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.write(add)
    assert number_of_jobs(store) == 3
