"""Submitting inside a transaction of the caller's: the job is there if and only if that commits (contract, section 6).

The caller's connection must be to the database of the records. What follows a submit (dispatch, streams) is told when
the transaction has committed; nothing depends on that, since every process looks once a second anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session

from celery_jobs.records import submit
from celery_jobs.records.changes import raise_counter
from celery_jobs.records.submit import NewJob, Submitted

# the event comes before the commit itself
_COMMITTED_SECONDS: Final = (0.005, 0.05)
_ELSEWHERE: Final = (
    "the connection is to another database than the records; a job and your rows commit together only in one database "
    "(DATABASE_URL)"
)

_places: WeakKeyDictionary[Engine, tuple[str, ...]] = WeakKeyDictionary()


def place(connection: Connection) -> tuple[str, ...]:
    """Equal for connections to one database, whatever their addresses say."""
    if connection.engine not in _places:
        if connection.dialect.name == "sqlite":
            files = connection.execute(text("PRAGMA database_list")).all()
            found = ("sqlite", *(str(Path(row[2]).resolve()) for row in files if row[1] == "main" and row[2]))
        elif connection.dialect.name == "postgresql":
            # a server's start tells it from every other one, also behind a pooler
            server = connection.execute(text("SELECT current_database(), pg_postmaster_start_time()::text")).one()
            found = ("postgresql", *server)
        else:
            found = (connection.dialect.name,)
        _places[connection.engine] = found
    return _places[connection.engine]


def insert(
    given: Connection | Session, job: NewJob, ours: tuple[str, ...], told: Callable[[Submitted], None]
) -> Submitted:
    """Record the job in the caller's transaction; `told` is called when that has committed, from another thread.

    ValueError for another database or a connection without a transaction; IdempotencyKeyReused.
    """
    connection = given.connection() if isinstance(given, Session) else given
    if place(connection) != ours:
        raise ValueError(_ELSEWHERE)
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise ValueError("the connection commits each statement by itself; give one that is inside a transaction")
    if connection.dialect.name == "sqlite":
        connection.execute(raise_counter())  # takes the lock of the one writer, until the transaction ends
    (outcome,) = submit.insert_batch(connection, [job])
    if isinstance(outcome, Exception):
        raise outcome
    event.listen(connection, "commit", lambda _: _soon(told, outcome), once=True)
    return outcome


async def insert_async(given: Any, job: NewJob, ours: tuple[str, ...], told: Callable[[Submitted], None]) -> Submitted:
    """The same for SQLAlchemy's AsyncConnection and AsyncSession."""
    return await given.run_sync(insert, job, ours, told)


def is_async(given: Any) -> bool:
    """Whether it is one of SQLAlchemy's asynchronous ones; TypeError when it is no connection and no session."""
    if isinstance(given, Connection | Session):
        return False
    if hasattr(given, "run_sync"):
        return True
    raise TypeError(
        "connection must be SQLAlchemy's Connection, Session, AsyncConnection or AsyncSession, inside a transaction, "
        f"not {type(given).__name__}"
    )


def _soon(told: Callable[[Submitted], None], outcome: Submitted) -> None:
    for seconds in _COMMITTED_SECONDS:
        timer = threading.Timer(seconds, told, (outcome,))
        timer.daemon = True
        timer.start()
