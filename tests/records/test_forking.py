"""A process that is forked while one of its threads writes: the child's SQLite holds no lock of its parent's."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Connection, text

from celery_jobs.records.store import Store

HELD_SECONDS = 0.5


def add_queue(connection: Connection, name: str) -> None:
    connection.execute(text("INSERT INTO queues (name) VALUES (:name)"), {"name": name})


def forked(url: str) -> int:
    """The exit status of a child that writes by itself."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            Store(url).write_within(5.0, add_queue, "of-the-child")
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_forked_during_a_write_can_write(sqlite_url: str) -> None:
    store = Store(sqlite_url)
    inside, ended = threading.Event(), threading.Event()

    def slow(connection: Connection) -> None:
        add_queue(connection, "of-the-parent")
        inside.set()
        ended.wait(HELD_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(store.write, slow)
        assert inside.wait(5)
        assert forked(sqlite_url) == 0
        writing.result(5)
    names = store.read(lambda connection: set(connection.execute(text("SELECT name FROM queues")).scalars()))
    assert {"of-the-parent", "of-the-child"} <= names
    store.close()
