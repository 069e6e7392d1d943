"""Transactions: the sync and the async face of the same statements.

A unit of work is a plain function that takes a Connection; `Store.write(work, …)` runs it in one transaction for
threads, `AsyncStore.write(work, …)` for the event loop. The faces differ by `await` only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Executable, Row, Select

from celery_jobs.records.doubt import Doubt, bounded, once_more
from celery_jobs.records.engine import database_url, sync_engine
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.outage import backoff_seconds, is_momentary, is_outage
from celery_jobs.records.sqlite_writer import SqliteWriter
from celery_jobs.records.work import Odd, calling

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from celery_jobs.records.direct import Direct
    from celery_jobs.records.work import OneStatement

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[Connection, P], T]

# connections for small statements that go by SQLAlchemy, beside those of direct.py
_OTHERS = 3
# after so long a silence a write says BEGIN first
_HEARD_SECONDS = 0.5


class Store:
    """The face for threads and worker processes; `patience_seconds` is how long an outage is waited out.

    A forked child makes a Store of its own and keeps its parent's unused (tasks/process.py).
    """

    def __init__(self, url: str, *, patience_seconds: float = 0.0, pool_size: int = 5) -> None:
        self.engine: Engine = sync_engine(database_url(url), pool_size)
        self.patience_seconds = patience_seconds
        self._alone: Engine = self.engine  # SQLite: what writes, goes to the writer
        if self.engine.dialect.name != "sqlite":
            self._alone = sync_engine(database_url(url), pool_size, alone=True)
        self.writer = SqliteWriter(self.engine) if self.engine.dialect.name == "sqlite" else None

    def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(connection, …)` in a read transaction."""
        return self._patiently(partial(self.read_once, calling(work, *args, **kwargs)), self.patience_seconds)

    def read_for(self, patience_seconds: float, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `read`, with a patience of its own."""
        return self._patiently(partial(self.read_once, calling(work, *args, **kwargs)), patience_seconds)

    def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(connection, …)` in a write transaction; repeated after an outage, so it must be safe to repeat."""
        return self._patiently(partial(self._write, calling(work, *args, **kwargs)), self.patience_seconds)

    def write_for(self, patience_seconds: float, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `write`, with a patience of its own."""
        return self._patiently(partial(self._write, calling(work, *args, **kwargs)), patience_seconds)

    def write_within(self, seconds: float, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `write`, at the end of a process, which a silent database must not hold up: DatabaseUnavailable."""
        return within(seconds, partial(self.write_for, seconds, work, *args, **kwargs))

    def one(
        self, statement: Executable, parameters: Mapping[str, Any], patience_seconds: float = 0.0
    ) -> Row[Any] | None:
        """One writing statement, committed by itself in one round trip; its first row."""
        if self.writer is not None:
            first = partial(_first, statement=statement, parameters=parameters)
            work = partial(_result, self.writer, first)
        else:
            work = partial(self._one, statement, parameters)
        return self._patiently(work, patience_seconds or self.patience_seconds)

    def close(self) -> None:
        """Finish the writer and close every connection."""
        if self.writer is not None:
            self.writer.close()
        self.engine.dispose()
        self._alone.dispose()

    def _one(self, statement: Executable, parameters: Mapping[str, Any]) -> Row[Any] | None:
        with self._alone.connect() as connection:
            return _first(connection, statement, parameters)

    def read_once(self, work: Callable[[Connection], T]) -> T:
        """`work(connection)` in a read transaction, with no patience."""
        # PostgreSQL: each statement sees the newest commit and a single one needs no BEGIN and ROLLBACK around it
        with self._alone.connect() as connection:
            return work(connection)

    def _write(self, work: Callable[[Connection], T]) -> T:
        if self.writer is not None:
            return self.writer.submit(work).result()
        with self.engine.begin() as connection:
            return work(connection)

    def _patiently(self, attempt: Callable[[], T], patience_seconds: float) -> T:
        deadline = time.monotonic() + patience_seconds
        pauses = backoff_seconds()
        first = True
        while True:
            try:
                return attempt()
            except Exception as error:
                if not is_outage(error):
                    raise
                left = deadline - time.monotonic()
                again = first and is_momentary(error)  # a pooled connection that a restart broke is no outage
                if left <= 0 and not again:
                    raise DatabaseUnavailable(str(error)) from error
            first = False
            if left > 0:
                time.sleep(min(next(pauses), left))


class AsyncStore:
    """The face for the event loop; an outage is answered with DatabaseUnavailable in bounded time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # PostgreSQL talks on the loop itself; SQLite's calls go to the writer and to reader threads
        self._engine: AsyncEngine | None = None
        self._alone_engine: AsyncEngine | None = None
        self._direct: Direct | None = None
        if store.writer is None:
            from celery_jobs.records.direct import MOST_CONNECTIONS, Direct
            from celery_jobs.records.postgresql import async_engine

            self._engine = async_engine(store.engine.url)
            self._alone_engine = async_engine(store.engine.url, MOST_CONNECTIONS + _OTHERS, alone=True)
            self._direct = Direct(self._alone_engine)
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="sqlite-reader") if store.writer is not None else None
        self._heard = float("-inf")  # when PostgreSQL last answered

    async def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(connection, …)` in a read transaction."""
        call = calling(work, *args, **kwargs)
        if self._readers is not None:
            return await bounded(asyncio.wrap_future(self._readers.submit(self.store.read_once, call)))
        return await bounded(asyncio.ensure_future(once_more(partial(self._alone, call))))

    async def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(connection, …)` in a write transaction; repeated when its connection broke, so safe to repeat."""
        call, doubt = calling(work, *args, **kwargs), Doubt()
        if self.store.writer is not None:
            writing = self.store.writer.submit(call)
            return await bounded(asyncio.wrap_future(writing), Doubt(writing))
        return await bounded(asyncio.ensure_future(once_more(partial(self._write, call, doubt), doubt)), doubt)

    async def write_one(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `write`, for work that is one statement: it commits by itself, in one round trip instead of three."""
        call, doubt = calling(work, *args, **kwargs), Doubt()
        if self.store.writer is not None:
            writing = self.store.writer.submit(call, one_statement=True)
            return await bounded(asyncio.wrap_future(writing), Doubt(writing))
        # a server that is frozen does what it was sent when it wakes, long after its caller was told 503
        heard = time.monotonic() - self._heard < _HEARD_SECONDS
        attempt = partial(self._alone if heard else self._write, call, doubt)
        return await bounded(asyncio.ensure_future(once_more(attempt, doubt)), doubt)

    async def write_usual(self, work: OneStatement[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `write_one`, and on PostgreSQL the usual case by the driver itself."""
        heard = time.monotonic() - self._heard < _HEARD_SECONDS
        request = work.request(*args, **kwargs)
        if self._direct is None or not heard or request is Odd.ODD:
            return await self.write_one(work, *args, **kwargs)
        doubt = Doubt()
        row = await bounded(asyncio.ensure_future(once_more(partial(self._first, *request, doubt), doubt)), doubt)
        outcome = work.outcome(row)
        if outcome is not Odd.ODD:
            return outcome
        return await self.write_one(work.again if doubt.left else work, *args, **kwargs)

    async def close(self) -> None:
        """Close the connections of this face; the sync store closes its own."""
        if self._direct is not None:
            await self._direct.close()
        for engine in (self._engine, self._alone_engine):
            if engine is not None:
                await engine.dispose()
        if self._readers is not None:
            self._readers.shutdown(wait=False)

    async def _alone(self, call: Callable[[Connection], T], doubt: Doubt | None = None) -> T:
        assert self._alone_engine is not None
        async with self._alone_engine.connect() as connection:
            if doubt is not None:
                doubt.arisen = True
            value = await connection.run_sync(call)
        self._heard = time.monotonic()
        return value

    async def _first(self, statement: Select[Any], parameters: Mapping[str, Any], doubt: Doubt) -> Any:
        assert self._direct is not None
        doubt.arisen = True
        row = await self._direct.first(statement, parameters)
        self._heard = time.monotonic()
        return row

    async def _write(self, call: Callable[[Connection], T], doubt: Doubt) -> T:
        assert self._engine is not None
        async with self._engine.begin() as connection:
            value = await connection.run_sync(call)
            doubt.arisen = True  # from here on it commits
        self._heard = time.monotonic()
        return value


def within(seconds: float, call: Callable[[], T]) -> T:
    """The outcome of `call`, or DatabaseUnavailable after `seconds`; it goes on in a thread that holds up nobody."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="bounded-write", daemon=True).start()
    try:
        return outcome.result(seconds)
    except FutureTimeout:
        raise DatabaseUnavailable("no answer in time") from None


def _result(writer: SqliteWriter, call: Callable[[Connection], T]) -> T:
    return writer.submit(call, one_statement=True).result()


def _first(connection: Connection, statement: Executable, parameters: Mapping[str, Any]) -> Row[Any] | None:
    found = connection.execute(statement, parameters)
    return found.first() if found.returns_rows else None
