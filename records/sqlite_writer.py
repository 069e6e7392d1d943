"""SQLite's one writer of this process: a thread that runs what gathered in one transaction.

SQLite admits one writer at a time and a durable commit costs a disk flush, so calls that arrive while the last commit
runs share the next one. Each call is a savepoint of its own: a failure undoes that call alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from celery_jobs.records.changes import raise_counter

_Call = tuple[Callable[[Connection], Any], "Future[Any]", bool]
_Calls = queue.SimpleQueue["_Call | None"]
_Outcome = tuple["Future[Any]", Any, BaseException | None]

# more calls a commit would only delay the first of them
_MOST_PER_COMMIT = 200
CLOSE_SECONDS = 1.0


class SqliteWriter:
    """Runs writes one batch a transaction; safe to call from any thread and from an event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(writes=True)
        self._lock = threading.Lock()
        self._calls: _Calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[Connection], Any], *, one_statement: bool = False) -> Future[Any]:
        """The future of `call(connection)`, resolved once its transaction is on disk.

        One statement undoes itself when it fails, so it needs no savepoint.
        """
        future: Future[Any] = Future()
        with self._lock:
            self._calls.put((call, future, one_statement))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(self._calls,), name="sqlite-writer", daemon=True
                )
                self._thread.start()
        return future

    def close(self) -> None:
        """Finish what was submitted, then end the thread; a later submit starts another.

        A lock that another process holds is not waited for: who is told of no commit knows of none.
        """
        with self._lock:
            thread, calls = self._thread, self._calls
            self._thread, self._calls = None, queue.SimpleQueue()
        if thread is not None:
            calls.put(None)
            thread.join(timeout=CLOSE_SECONDS)

    def _run(self, calls: _Calls) -> None:
        while batch := _gather(calls):
            self._commit(batch)

    def _commit(self, batch: list[_Call]) -> None:
        outcomes: list[_Outcome] = []
        try:
            with self._engine.begin() as connection:  # waits for the lock of another process
                connection.execute(raise_counter())
                # a waiter that gave up meanwhile has its call taken out
                wanted = [entry for entry in batch if entry[1].set_running_or_notify_cancel()]
                for call, future, one_statement in wanted:
                    run = _alone if len(wanted) == 1 else _as_one_statement if one_statement else _in_savepoint
                    value, error = run(connection, call)
                    outcomes.append((future, value, error))
        except BaseException as error:
            outcomes = [(future, None, error) for _call, future, _one in batch]
        for outcome in outcomes:
            _answer(*outcome)


def _gather(calls: _Calls) -> list[_Call]:
    """Waits for a call, then takes what else is there; empty at the end."""
    first = calls.get()
    batch: list[_Call] = []
    while first is not None:
        if not first[1].cancelled():  # whoever gave up need not be waited for, nor hold up the others
            batch.append(first)
        if len(batch) == _MOST_PER_COMMIT:
            break
        try:
            first = calls.get(block=not batch)
        except queue.Empty:
            break
    else:
        if batch:
            calls.put(None)  # found behind the last calls: ends the thread after their commit
    return batch


def _alone(connection: Connection, call: Callable[[Connection], Any]) -> tuple[Any, BaseException | None]:
    return call(connection), None  # its failure undoes the whole transaction, which is its own


def _as_one_statement(connection: Connection, call: Callable[[Connection], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(connection), None
    except OperationalError:
        raise  # a full disk or the like may have undone the whole transaction
    except Exception as error:
        return None, error  # undone by itself


def _in_savepoint(connection: Connection, call: Callable[[Connection], Any]) -> tuple[Any, BaseException | None]:
    savepoint = connection.begin_nested()
    try:
        value = call(connection)
    except Exception as error:
        savepoint.rollback()
        return None, error
    savepoint.commit()
    return value, None


def _answer(future: Future[Any], value: Any, error: BaseException | None) -> None:
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)
    except InvalidStateError:
        pass  # the waiter gave up; nobody listens
