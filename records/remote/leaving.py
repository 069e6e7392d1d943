"""A remote worker goes, by itself or because it is silent: what becomes of what it held (contract, section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Update, delete, null, select, update

from celery_jobs.records.clock import now
from celery_jobs.records.errors import WorkerNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.remote.registering import remove_orphans
from celery_jobs.records.remote.workers import IS_REMOTE, REMOTE, UNCLAIMED, Who, renew
from celery_jobs.records.states import JobStatus
from celery_jobs.records.tables import jobs, remote_job_workers, status_in, workers
from celery_jobs.records.work import repeatable
from celery_jobs.records.workers import close_lost

_c = jobs.c
_w = workers.c
_link = remote_job_workers.c


@dataclass(frozen=True, slots=True)
class Gone:
    """What became of a worker's tasks and jobs when it went; `vacant`: jobs whose tasks may be claimed again."""

    ended: Sequence[JobId] = ()
    returned: Sequence[JobId] = ()
    vacant: Sequence[str] = ()
    workers: int = 0

    def __add__(self, other: Gone) -> Self:
        return type(self)(
            [*self.ended, *other.ended],
            [*self.returned, *other.returned],
            [*self.vacant, *other.vacant],
            self.workers + other.workers,
        )


@repeatable
def remove(connection: Connection, who: Who, lease_seconds: float, *, again: bool = False) -> Gone:
    """Take a worker away at its own wish; WorkerNotFound, NotAllowed.

    `again`: an earlier try may have done it and its answer was lost.
    """
    try:
        row = renew(connection, who, lease_seconds)
    except WorkerNotFound:
        if again:
            return Gone()
        raise
    return bury(connection, row.incarnation, row.name, "was taken away while it ran this task")


def lapsed(connection: Connection) -> list[str]:
    """The incarnations of the remote workers that have been silent for too long."""
    query = select(_w.incarnation).where(_w.kind == REMOTE, _w.lease_until <= now()).order_by(_w.incarnation)
    return list(connection.execute(query).scalars())


def bury_lapsed(connection: Connection, incarnation: str) -> Gone:
    """Take a silent worker away, unless it was heard of meanwhile."""
    row = connection.execute(
        select(_w.name).where(_w.incarnation == incarnation, _w.lease_until <= now()).with_for_update()
    ).first()
    return Gone() if row is None else bury(connection, incarnation, row.name, "stopped reporting")


def bury(connection: Connection, incarnation: str, name: str, reason: str) -> Gone:
    """Remove a worker's row: what it runs fails, what it claimed goes back, jobs that only it served may go."""
    connection.execute(delete(workers).where(_w.incarnation == incarnation))
    ended = close_lost(connection, incarnation, f"worker {name} {reason}", which=IS_REMOTE)
    returned = release(connection, _c.worker_incarnation == incarnation)
    connection.execute(let_go(_c.worker_incarnation == incarnation))
    served = delete(remote_job_workers).where(_link.worker_incarnation == incarnation).returning(_link.registration)
    left = list(connection.execute(served).scalars())
    remove_orphans(connection, left)
    return Gone(ended, [each.id for each in returned], [each.registration for each in returned], 1)


def release(connection: Connection, *which: Any) -> list[Any]:
    """Claimed tasks go back to where any worker of their job may claim them."""
    statement = (
        update(jobs)
        .where(IS_REMOTE, status_in(JobStatus.pending), _c.dispatched_at.is_not(None), *which)
        .values(UNCLAIMED)
        .returning(_c.id, _c.registration)
    )
    return list(connection.execute(statement).all())


def held_after_end() -> tuple[ColumnElement[bool], ...]:
    """Tasks that have ended and are still somebody's to be told of."""
    return (IS_REMOTE, _c.worker_incarnation.is_not(None), _c.finished_at.is_not(None))


def let_go(*which: Any) -> Update:
    """Tasks that have ended are held by nobody any more, and nobody needs to be told of their cancelling."""
    return update(jobs).where(*held_after_end(), *which).values(worker_incarnation=null())
