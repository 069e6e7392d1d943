"""The database of a request: the service's own, or the session of the host app that includes the router."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from sqlalchemy import Connection

from celery_jobs.records import submit
from celery_jobs.records.cancel import CancelAnswer
from celery_jobs.records.changes import raise_counter
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.outage import is_momentary, is_outage
from celery_jobs.records.submit import NewJob, Submitted
from celery_jobs.records.work import OneStatement, calling
from celery_jobs.tasks.service import JobService
from celery_jobs.tasks.submit import SubmitOptions

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession  # a third of a second at the start of a service that needs none

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[Connection, P], T]


class Records(Protocol):
    """What the routes need of a database; each call is a transaction of its own, so that nothing is held in between."""

    scheduler: JobService | None  # where Celery's workers serve this database

    async def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(connection, …)` in a read transaction."""
        ...

    async def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(connection, …)` in a write transaction; safe to repeat, by its `again` if it is Repeatable."""
        ...

    async def write_one(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `write`, for work that PostgreSQL does in one statement."""
        ...

    async def submit(self, job: NewJob, options: SubmitOptions) -> Submitted:
        """Record a task; durable when this returns."""
        ...

    def changed(self, ids: Collection[str]) -> None:
        """Tasks were written, or a registered job has something to claim; after the commit."""
        ...

    def canceled(self, answer: CancelAnswer) -> None:
        """A task was asked to stop; after the commit."""
        ...


class OwnRecords:
    """The database of this service, and the hints that go with it."""

    def __init__(self, scheduler: JobService) -> None:
        self.scheduler: JobService | None = scheduler
        self._scheduler = scheduler
        self._store = scheduler.store

    async def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As Records says."""
        return await self._store.read(work, *args, **kwargs)

    async def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As Records says."""
        return await self._store.write(work, *args, **kwargs)

    async def write_one(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As Records says; SQLite needs no savepoint, since all but the last of its statements are a sign of life."""
        if isinstance(work, OneStatement):
            return await self._store.write_usual(cast("OneStatement[P, T]", work), *args, **kwargs)
        return await self._store.write_one(work, *args, **kwargs)

    async def submit(self, job: NewJob, options: SubmitOptions) -> Submitted:
        """As Records says."""
        return await self._scheduler.submit_new(job, options)

    def changed(self, ids: Collection[str]) -> None:
        """As Records says; other processes hear it too."""
        self._scheduler.changed(ids)

    def canceled(self, answer: CancelAnswer) -> None:
        """As Records says."""
        self._scheduler.asked_to_cancel(answer)


class HostRecords:
    """The session that a host app gives to a request."""

    scheduler: JobService | None = None

    def __init__(self, session: AsyncSession, changed: Callable[[Collection[str]], None]) -> None:
        self._session = session
        self._changed = changed

    async def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As Records says."""
        return await self._transaction(lambda connection: work(connection, *args, **kwargs))

    async def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As Records says."""
        call = calling(work, *args, **kwargs)

        def run(connection: Connection) -> T:
            if connection.dialect.name == "sqlite":
                connection.execute(raise_counter())  # takes SQLite's one lock before anything is read
            return call(connection)

        return await self._transaction(run)

    async def write_one(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As Records says."""
        return await self.write(work, *args, **kwargs)

    async def submit(self, job: NewJob, options: SubmitOptions) -> Submitted:
        """As Records says."""
        (outcome,) = await self.write(submit.insert_batch, [options.applied(job, _KEEP_KEYS_SECONDS)])
        if isinstance(outcome, Exception):
            raise outcome
        self.changed([outcome.job_id, *([job.registration] if job.registration else [])])
        return outcome

    def changed(self, ids: Collection[str]) -> None:
        """As Records says; within this process, other ones look by themselves."""
        self._changed(ids)

    def canceled(self, answer: CancelAnswer) -> None:
        """As Records says; workers look at their records once a second."""
        self._changed([str(answer.record.id)])

    async def _transaction(self, run: Callable[[Connection], Any]) -> Any:
        for last in (False, True):
            try:
                return await self._once(run)
            except Exception as error:
                # a restart broke a connection of the host's pool, or another transaction had to win
                if is_momentary(error) and not last:
                    continue
                if is_outage(error):
                    raise DatabaseUnavailable(str(error)) from error
                raise
        raise AssertionError("unreachable")

    async def _once(self, run: Callable[[Connection], Any]) -> Any:
        try:
            connection = await self._session.connection()
            value = await connection.run_sync(run)
            await self._session.commit()
        except Exception:
            await self._session.rollback()
            raise
        return value


_KEEP_KEYS_SECONDS = 86_400.0
