"""Engines from one DATABASE_URL: a synchronous and (on PostgreSQL) an asynchronous one; pools, pragmas, timeouts."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.forking import fork_guard

# a database that does not answer is told from a slow one by these (seconds)
CONNECT_TIMEOUT_SECONDS = 3
LOCK_TIMEOUT_SECONDS = 30
# longer than any statement waits for a lock: a thread must not hang on a connection whose other end says nothing more
SILENCE_SECONDS = 40.0

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

    A statement that is not answered within SILENCE_SECONDS loses its connection, unless the engine is `unhurried`.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url)
    more = _alone() if alone else {}
    engine = create_engine(
        url, pool_size=pool_size, max_overflow=10, pool_timeout=10, connect_args=connection_arguments(), **more
    )
    event.listen(engine, "connect", _configure_session)
    if not unhurried:
        event.listen(engine, "do_connect", _connect_bounded)
    return engine


class _BoundedConnection(psycopg.Connection[Any]):
    """Gives up where the server, or what stands before it, keeps the connection open and says nothing."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """The outcome of `gen`, within bounds; the connection is closed where there is none."""
        try:
            return super().wait(gen, interval, SILENCE_SECONDS if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise


def _connect_bounded(_dialect: Any, _record: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    return _BoundedConnection.connect(*args, **options)


def async_engine(url: URL, pool_size: int = 6, *, alone: bool = False) -> AsyncEngine:
    """PostgreSQL only: an engine for the event loop. `alone`: each statement commits by itself."""
    more = _alone() if alone else {}
    engine = create_async_engine(
        url, pool_size=pool_size, max_overflow=4, pool_timeout=4, connect_args=connection_arguments(), **more
    )
    event.listen(engine.sync_engine, "connect", _configure_session)
    return engine


def _configure_session(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # every statement here is small; compiling one took 250 ms where the planner had no statistics yet
    cursor.execute("SET jit = off")
    # a client that was paused, or whose host vanished, must not hold a queue's row for longer
    cursor.execute("SET idle_in_transaction_session_timeout = '10s'")
    cursor.execute("SET lock_timeout = '30s'")
    cursor.close()
    connection.commit()


def _alone() -> dict[str, Any]:
    # connections of their own: to switch one to autocommit and back costs as much as a small statement
    return {"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None}


def connection_arguments() -> dict[str, Any]:
    """What every connection to PostgreSQL is made with: how long it waits, and when it counts as broken."""
    # keepalives: a connection whose other end vanished (power, network) must not hold its thread for hours
    return {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,  # milliseconds; keepalives do not count while data is on its way
        "application_name": "celery-jobs",
    }


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
