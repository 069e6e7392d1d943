"""Submitting inside a transaction of the caller's: the job is there if and only if that commits (contract, section 6).

The caller's connection must be to the database of the records. What follows a submit (dispatch, streams, its count) is
told once the transaction has committed; nothing depends on that, since every process looks once a second anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_jobs.records import reads, submit
from celery_jobs.records.changes import raise_counter
from celery_jobs.records.submit import NewJob, Submitted

# in a spelling that no session's settings change
_SERVER = text("SELECT current_database(), extract(epoch FROM pg_postmaster_start_time())::text")

Told = Callable[[NewJob, Submitted], None]
Place = tuple[str, ...]

_COMMITTED_SECONDS: Final = 0.02  # the event comes before the commit itself


class Elsewhere(ValueError):
    """The caller's connection is to another database than the records."""

    def __init__(self) -> None:
        super().__init__(
            "the connection is to another database than the records; a job and your rows commit together only in one "
            "database (DATABASE_URL)"
        )


_places: WeakKeyDictionary[Engine, Place] = WeakKeyDictionary()


def place(connection: Connection, *, anew: bool = False) -> Place:
    """Equal for connections to one database, whatever their addresses say; remembered unless asked `anew`."""
    if anew or connection.engine not in _places:
        _places[connection.engine] = _place(connection)
    return _places[connection.engine]


def _place(connection: Connection) -> Place:
    if connection.dialect.name == "sqlite":
        files = connection.execute(text("PRAGMA database_list")).all()
        return ("sqlite", *(str(Path(row[2]).resolve()) for row in files if row[1] == "main" and row[2]))
    if connection.dialect.name == "postgresql":
        # when a server started tells it from every other one, also behind a pooler and from a copy of its files
        return ("postgresql", *connection.execute(_SERVER).one())
    return (connection.dialect.name,)


def insert(given: Connection | Session, job: NewJob, ours: Place, told: Told, *, anew: bool = False) -> Submitted:
    """Record the job in the caller's transaction; `told` is called when that has committed, from another thread.

    Elsewhere (also after a restart of the server, until both sides are asked `anew`), ValueError for a connection
    without a transaction, IdempotencyKeyReused.
    """
    connection = given.connection() if isinstance(given, Session) else given
    if _commits_each_statement(connection):
        raise ValueError("the connection commits each statement by itself; give one that is inside a transaction")
    if place(connection, anew=anew) != ours:
        raise Elsewhere
    if connection.dialect.name == "sqlite":
        connection.execute(raise_counter())  # takes the lock of the one writer, until the transaction ends
    (outcome,) = submit.insert_batch(connection, [job])
    if isinstance(outcome, Exception):
        raise outcome
    _Waiting.of(connection).told_later(job, outcome, told)
    return outcome


async def insert_async(given: Any, job: NewJob, ours: Place, told: Told, *, anew: bool = False) -> Submitted:
    """The same for SQLAlchemy's AsyncConnection and AsyncSession."""

    def run(inner: Connection | Session) -> Submitted:
        return insert(inner, job, ours, told, anew=anew)

    return await given.run_sync(run)


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


def _commits_each_statement(connection: Connection) -> bool:
    asked = connection.get_execution_options().get("isolation_level")
    return (asked or getattr(connection.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


class _Waiting:
    """What one connection's open transaction has submitted: told all at once, and only if it commits."""

    def __init__(self, connection: Connection) -> None:
        self._submitted: list[tuple[NewJob, Submitted, Told]] = []
        event.listen(connection, "commit", self._committing)
        event.listen(connection, "rollback", self._rolled_back)

    @classmethod
    def of(cls, connection: Connection) -> _Waiting:
        if connection not in _waiting:
            _waiting[connection] = cls(connection)
        return _waiting[connection]

    def told_later(self, job: NewJob, outcome: Submitted, told: Told) -> None:
        self._submitted.append((job, outcome, told))

    def _committing(self, connection: Connection) -> None:
        submitted, self._submitted = self._submitted, []
        if not submitted:
            return
        try:  # a savepoint may have taken some of them back
            there = reads.statuses(connection, [outcome.job_id for _, outcome, _ in submitted])
        except SQLAlchemyError:
            return  # an aborted transaction, whose commit is none
        timer = threading.Timer(_COMMITTED_SECONDS, _tell, ([each for each in submitted if each[1].job_id in there],))
        timer.daemon = True
        timer.start()

    def _rolled_back(self, _connection: Connection) -> None:
        self._submitted.clear()


_waiting: WeakKeyDictionary[Connection, _Waiting] = WeakKeyDictionary()


def _tell(submitted: Sequence[tuple[NewJob, Submitted, Told]]) -> None:
    for job, outcome, told in submitted:
        told(job, outcome)
