"""Claiming: the oldest pending task over all the worker's jobs, to exactly one winner (contract, section 8).

PostgreSQL does it in one statement: the sign of life, the choice (`FOR UPDATE SKIP LOCKED`) and the claim; SQLite's one
writer in one guarded UPDATE after the sign of life.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, any_, bindparam, func, select, true, update

from celery_jobs.records.clock import from_now, now
from celery_jobs.records.ids import JobId
from celery_jobs.records.remote import tasks
from celery_jobs.records.remote.leaving import release
from celery_jobs.records.remote.tasks import RemoteTask
from celery_jobs.records.remote.workers import IS_REMOTE, REMOTE, Who, refuse, renew, renewal, renewed
from celery_jobs.records.states import JobStatus
from celery_jobs.records.tables import jobs, remote_job_workers, status_in, workers
from celery_jobs.records.work import IsOdd, Odd, OneStatement, Request

_c = jobs.c
_link = remote_job_workers.c
_CLAIMABLE = (status_in(JobStatus.pending), _c.dispatched_at.is_(None), _c.registration.is_not(None))
# the oldest of each job that are looked at: as many claims may hold some of them at this moment
_CANDIDATES = 64


def _oldest(incarnation: ColumnElement[str]) -> Select[Any]:
    """The oldest tasks that a worker may claim, in order; each job's by its own stretch of the partial index."""
    of_one_job = (
        select(_c.seq)
        .where(_c.registration == _link.registration, *_CLAIMABLE)
        .order_by(_c.seq)
        .limit(_CANDIDATES)
        .lateral("of_one_job")
    )
    return (
        select(of_one_job.c.seq)
        .select_from(remote_job_workers.join(of_one_job, true()))
        .where(_link.worker_incarnation == incarnation)
        .order_by(of_one_job.c.seq)
        .limit(_CANDIDATES)
    )


@cache
def _postgresql() -> Select[Any]:
    me = renewal().cte("me")
    oldest = _oldest(select(me.c.incarnation).scalar_subquery()).cte("oldest")
    chosen = (
        select(_c.seq)
        # an IN would be planned as a join over all that is pending; an array is looked up by key
        .where(_c.seq == any_(func.array(select(oldest.c.seq).scalar_subquery())), *_CLAIMABLE)
        .order_by(_c.seq)
        .limit(1)
        .with_for_update(skip_locked=True)
        .cte("chosen")
    )
    claimed = (
        update(jobs)
        .where(_c.seq == select(chosen.c.seq).scalar_subquery(), *_CLAIMABLE)
        .values(
            dispatched_at=now(),
            worker=select(me.c.name).scalar_subquery(),
            worker_incarnation=select(me.c.incarnation).scalar_subquery(),
            held_by=select(me.c.owner).scalar_subquery(),
        )
        .returning(*tasks.COLUMNS)
        .cte("claimed")
    )
    return select(me.c.incarnation, claimed).select_from(me.outerjoin(claimed, true()))


# a job's own stretch of the index, one after the other: SQLite has no LATERAL
_JOBS_OF = select(_link.registration).where(_link.worker_incarnation == bindparam("incarnation"))
_OLDEST_OF_JOB = select(func.min(_c.seq)).where(_c.registration == _link.registration, *_CLAIMABLE).scalar_subquery()
_NEXT = select(func.min(_OLDEST_OF_JOB)).select_from(remote_job_workers)
_SQLITE = (
    update(jobs)
    .where(_c.seq == _NEXT.where(_link.worker_incarnation == bindparam("incarnation")).scalar_subquery(), *_CLAIMABLE)
    .values(
        dispatched_at=now(),
        worker=bindparam("worker_id"),
        worker_incarnation=bindparam("incarnation"),
        held_by=bindparam("owner"),
    )
    .returning(*tasks.COLUMNS)
)


def _claim(connection: Connection, who: Who, lease_seconds: float) -> RemoteTask | None:
    """The oldest task that the calling worker may run, now claimed by it; None where none waits.

    Renews the worker's lease; WorkerNotFound, NotAllowed.
    """
    if connection.dialect.name == "sqlite":
        worker = renew(connection, who, lease_seconds)
        named = {"incarnation": worker.incarnation, "worker_id": worker.name, "owner": worker.owner}
        row = connection.execute(_SQLITE, named).first()
        return None if row is None else RemoteTask.of(row)
    row = connection.execute(_postgresql(), renewed(who, lease_seconds)).first()
    if row is None:
        refuse(connection, who)
    return None if row is None or row.id is None else RemoteTask.of(row)


def _usual_claim(who: Who, lease_seconds: float) -> Request:
    return _postgresql(), renewed(who, lease_seconds)


def _claimed(row: Any) -> RemoteTask | IsOdd | None:
    if row is None:
        return Odd.ODD  # no such worker
    return None if row.id is None else RemoteTask.of(row)


claim = OneStatement(_claim, _usual_claim, _claimed)


def put_back(connection: Connection, task_id: JobId, who: Who) -> Sequence[str]:
    """Undo a claim whose answer nobody took; the registrations whose task may be claimed again."""
    # by the worker's name: of this very claim, since no other can come between
    return [each.registration for each in release(connection, _c.id == task_id, _c.worker == who.worker)]


def served(connection: Connection, who: Who) -> set[str]:
    """The registrations that the calling worker serves; empty where there is no such worker."""
    query = (
        select(_link.registration)
        .join(workers, workers.c.incarnation == _link.worker_incarnation)
        .where(workers.c.name == who.worker, workers.c.kind == REMOTE)
    )
    return set(connection.execute(query).scalars())


def to_call(connection: Connection, worker_ids: Sequence[str]) -> set[str]:
    """Those of these workers that could claim something now, or that are no more."""
    # not EXISTS, which may be planned as a join over all that is pending
    work = select(_c.seq).where(_c.registration == _link.registration, *_CLAIMABLE).order_by(_c.seq).limit(1)
    query = (
        select(workers.c.name, func.max(work.scalar_subquery()).label("work"))
        .outerjoin(remote_job_workers, _link.worker_incarnation == workers.c.incarnation)
        .where(workers.c.kind == REMOTE, workers.c.name.in_(sorted(worker_ids)))
        .group_by(workers.c.name)
    )
    idle = {row.name for row in connection.execute(query) if row.work is None}
    return set(worker_ids) - idle


def overdue(connection: Connection, longest_claim_seconds: float) -> bool:
    """Whether a claim is older than it may be without a report; the look before `return_overdue`."""
    query = select(_c.seq).where(*_overdue(longest_claim_seconds)).limit(1)
    return connection.execute(query).first() is not None


def return_overdue(connection: Connection, longest_claim_seconds: float) -> list[Any]:
    """Claims that nobody reported running go back, so that an answer that was lost loses nothing."""
    return release(connection, *_overdue(longest_claim_seconds))


def _overdue(longest_claim_seconds: float) -> tuple[ColumnElement[bool], ...]:
    # the worker's incarnation is named for the index of what is held
    return (
        IS_REMOTE,
        _c.worker_incarnation.is_not(None),
        status_in(JobStatus.pending),
        _c.dispatched_at <= from_now(-longest_claim_seconds),
    )
