"""Engines from one DATABASE_URL, and how SQLite's connections are set up (PostgreSQL's: postgresql.py)."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, OperationalError

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.forking import fork_guard

LOCK_TIMEOUT_SECONDS = 30

_KNOWN = "postgresql://user:password@host:5432/name or sqlite:///path/to/file.db"


def database_url(text: str) -> URL:
    """The SQLAlchemy URL, with the driver that the service uses; SettingsError for any other kind of database."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise SettingsError(f"DATABASE_URL is no database address; write {_KNOWN}") from None
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise SettingsError(
                "DATABASE_URL names an in-memory SQLite database, which no two connections share; name a file"
            )
        return url.set(drivername="sqlite")
    raise SettingsError(f"DATABASE_URL names a database of the kind {backend!r}; the service knows {_KNOWN}")


def sync_engine(url: URL, pool_size: int = 5, *, alone: bool = False, unhurried: bool = False) -> Engine:
    """An engine for threads; opens no connection before its first use. `alone`: each statement commits by itself.

    A statement that PostgreSQL leaves without an answer loses its connection in the end, unless it is `unhurried`.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url)
    from celery_jobs.records import postgresql  # its driver is a tenth of a start, which SQLite does without

    return postgresql.sync_engine(url, pool_size, alone=alone, unhurried=unhurried)


def _sqlite_engine(url: URL) -> Engine:
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    arguments = {"timeout": LOCK_TIMEOUT_SECONDS, "check_same_thread": False}
    engine = create_engine(url, pool_size=4, max_overflow=12, connect_args=arguments)

    event.listen(engine, "do_connect", _open)
    event.listen(engine, "checkout", _enter)
    event.listen(engine, "checkin", _leave)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.isolation_level = None  # the driver's own BEGIN comes too late; we begin ourselves
        _use_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")  # an answered submit survives a power cut
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA cache_size=-16000")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        if connection.get_execution_options().get("writes", False):
            _begin_write(connection)
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


_INSIDE = "inside the fork guard"


def _open(_dialect: Any, _record: Any, arguments: Sequence[Any], options: dict[str, Any]) -> sqlite3.Connection:
    # it takes locks of the whole library: a child that was forked meanwhile could never open a connection
    fork_guard.enter()
    try:
        return sqlite3.connect(*arguments, **options)
    finally:
        fork_guard.leave()


def _enter(_connection: Any, record: Any, _proxy: Any) -> None:
    fork_guard.enter()
    record.record_info[_INSIDE] = True


def _leave(_connection: Any, record: Any) -> None:
    if record.record_info.pop(_INSIDE, False):  # a connection that could not be opened is checked in as well
        fork_guard.leave()


def _use_wal(connection: sqlite3.Connection) -> None:
    # the switch of a new file does not wait for another process that is at it; SQLite says "locked" at once
    _while_locked(lambda: connection.execute("PRAGMA journal_mode=WAL"), sqlite3.OperationalError)


def _begin_write(connection: Connection) -> None:
    # a writer takes the lock at once: upgrading a read transaction fails under contention. SQLite's own waiting sleeps
    # for up to 100 ms at a time, which starves whoever meets a busier process, so we ask more often.
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute("PRAGMA busy_timeout=0")
    try:
        _while_locked(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"), OperationalError, _rest_outside)
    finally:
        driver.execute(f"PRAGMA busy_timeout={int(LOCK_TIMEOUT_SECONDS * 1000)}")


def _rest_outside(seconds: float) -> None:
    # who waits for the lock holds none: a fork need not wait as well
    fork_guard.leave()
    time.sleep(seconds)
    fork_guard.enter()


def _while_locked(
    attempt: Callable[[], object], error_class: type[Exception], rest: Callable[[float], None] = time.sleep
) -> None:
    began = time.monotonic()
    while True:
        try:
            attempt()
        except error_class as error:
            waited = time.monotonic() - began
            if "locked" not in str(error) or waited > LOCK_TIMEOUT_SECONDS:
                raise
            # often at first, seldom where somebody holds it for long: many processes may wait for minutes
            rest(random.uniform(0.25, 1.0) * (0.004 + min(waited, 10.0) / 500))
        else:
            return
