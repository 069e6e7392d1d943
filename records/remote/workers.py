"""Remote workers: rows of the workers table whose lease every call of theirs renews (contract, section 8).

Whoever holds the lock of a worker's row is sure of it: a call renews first, so no sweeper takes it away meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Update,
    bindparam,
    delete,
    func,
    literal_column,
    null,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from celery_jobs.records.clock import from_now, now
from celery_jobs.records.errors import NotAllowed, WorkerNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import JobKind, JobStatus
from celery_jobs.records.tables import jobs, remote_job_workers, remote_jobs, status_in, workers
from celery_jobs.records.workers import close_lost

_c = jobs.c
_w = workers.c
_r = remote_jobs.c
_link = remote_job_workers.c
_S = JobStatus
REMOTE = str(JobKind.remote)
IS_REMOTE = _c.kind == literal_column(f"'{REMOTE}'")  # literal, so that the partial indexes are seen to fit
# what a task is when nobody has it
UNCLAIMED: dict[str, Any] = {"dispatched_at": null(), "worker": null(), "worker_incarnation": null(), "held_by": null()}


@dataclass(frozen=True, slots=True)
class Who:
    """Whom a call comes from, and for which of its workers; without one the identity is the worker."""

    identity: str
    admin: bool = False
    worker_id: str | None = None

    @property
    def worker(self) -> str:
        """The id of the worker that calls."""
        return self.identity if self.worker_id is None else self.worker_id


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker that has just been heard of, and the tasks that it should stop."""

    id: str
    last_heartbeat: datetime
    cancelled_task_ids: Sequence[JobId] = ()


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as lists show it: the full names of the jobs that it serves."""

    id: str
    last_heartbeat: datetime
    jobs: Sequence[str]


def renewal() -> Update:
    """The UPDATE of a sign of life: of the worker `name` where it is `identity`'s, or anybody's for an `admin`."""
    return (
        update(workers)
        .where(
            _w.kind == REMOTE,
            _w.name == bindparam("worker_id"),
            or_(_w.owner == bindparam("identity"), bindparam("admin") == true()),
        )
        .values(seen_at=now(), lease_until=from_now(bindparam("lease_seconds")))
        .returning(_w.incarnation, _w.name, _w.owner, _w.seen_at)
    )


def renewed(who: Who, lease_seconds: float) -> dict[str, Any]:
    """The parameters of `renewal`."""
    return {
        "worker_id": who.worker,
        "identity": who.identity,
        "admin": who.admin,
        "lease_seconds": lease_seconds,
    }


_RENEW = renewal()


def renew(connection: Connection, who: Who, lease_seconds: float) -> Any:
    """The row of the worker, whose lease begins anew; WorkerNotFound, NotAllowed."""
    row = connection.execute(_RENEW, renewed(who, lease_seconds)).first()
    if row is None:
        refuse(connection, who)
    return row


def refuse(connection: Connection, who: Who) -> None:
    """Say why there is no such worker for this caller."""
    owner = connection.execute(select(_w.owner).where(_w.kind == REMOTE, _w.name == who.worker)).scalar()
    if owner is None:
        raise WorkerNotFound(who.worker)
    raise NotAllowed(who.identity, f"act for worker {who.worker}, which is of another identity")


def renew_many(connection: Connection, worker_ids: Sequence[str], lease_seconds: float) -> None:
    """A sign of life of all who wait for a task."""
    chosen = select(_w.incarnation).where(_w.kind == REMOTE, _w.name.in_(sorted(worker_ids)))
    # in one order, since another process may do the same
    rows = list(connection.execute(chosen.order_by(_w.incarnation).with_for_update()).scalars())
    statement = update(workers).where(_w.incarnation.in_(rows))
    connection.execute(statement.values(seen_at=now(), lease_until=from_now(lease_seconds)))


def create(connection: Connection, who: Who, worker_id: str, lease_seconds: float) -> Beat:
    """A worker of this identity with an id of its own; safe to repeat."""
    row = _ensure(connection, worker_id, who.identity, lease_seconds)
    return Beat(row.name, row.seen_at)


def ensure(connection: Connection, who: Who, lease_seconds: float) -> Any:
    """The row of the calling worker; that of the identity itself is made where there is none. WorkerNotFound."""
    if who.worker_id is not None:
        return renew(connection, who, lease_seconds)
    return _ensure(connection, who.identity, who.identity, lease_seconds)


def _ensure(connection: Connection, worker_id: str, owner: str, lease_seconds: float) -> Any:
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    fresh = {"seen_at": now(), "lease_until": from_now(lease_seconds)}
    statement = (
        insert(workers)
        .values(incarnation=uuid4().hex, name=worker_id, kind=REMOTE, owner=owner, slots=1, started_at=now(), **fresh)
        .on_conflict_do_update(
            index_elements=["name"], index_where=text("kind = 'remote'"), set_=fresh, where=_w.owner == owner
        )
        .returning(_w.incarnation, _w.name, _w.owner, _w.seen_at)
    )
    row = connection.execute(statement).first()
    if row is None:
        raise NotAllowed(owner, f"be worker {worker_id}, which is of another identity")
    return row


def beat(connection: Connection, who: Who, lease_seconds: float) -> Beat:
    """A sign of life, answered with the tasks that were cancelled; WorkerNotFound, NotAllowed."""
    row = renew(connection, who, lease_seconds)
    return Beat(row.name, row.seen_at, cancelled(connection, row.incarnation, lease_seconds))


# told until the worker reports, and at most for one worker timeout
CANCELLED = (
    select(_c.id)
    .where(
        IS_REMOTE,
        status_in(_S.canceled),
        _c.finished_at > from_now(-bindparam("told_for_seconds", type_=Float())),
    )
    .order_by(_c.seq)
)
_CANCELLED_OF = CANCELLED.where(_c.worker_incarnation == bindparam("incarnation"))


def cancelled(connection: Connection, incarnation: str, told_for_seconds: float) -> list[JobId]:
    """The tasks that were cancelled while this worker held them."""
    named = {"incarnation": incarnation, "told_for_seconds": told_for_seconds}
    return [JobId(each) for each in connection.execute(_CANCELLED_OF, named).scalars()]


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


def remove(connection: Connection, who: Who, lease_seconds: float) -> Gone:
    """Take a worker away at its own wish; WorkerNotFound, NotAllowed."""
    row = renew(connection, who, lease_seconds)
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
        .where(IS_REMOTE, status_in(_S.pending), _c.dispatched_at.is_not(None), *which)
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


def _orphan() -> tuple[ColumnElement[bool], ...]:
    """Registered jobs that no worker serves and no unfinished task needs."""
    served = select(_link.registration).where(_link.registration == _r.id).exists()
    needed = select(_c.seq).where(_c.registration == _r.id, _c.finished_at.is_(None)).exists()
    return (_r.removed_at.is_(None), ~served, ~needed)


def orphans(connection: Connection) -> list[str]:
    """The registrations of the jobs that may go; a look without a lock."""
    return list(connection.execute(select(_r.id).where(*_orphan())).scalars())


def remove_orphans(connection: Connection, registrations: Sequence[str] | None = None) -> list[str]:
    """Remove the jobs (among these) that no worker serves and no unfinished task needs; their full names are free."""
    query = select(_r.id).where(*_orphan()).order_by(_r.id)
    if registrations is not None:
        query = query.where(_r.id.in_(list(registrations)))
    # locked first and judged again in a second statement: a submit or a registration that holds the row shared
    # commits before, and is then seen
    chosen = list(connection.execute(query.with_for_update(of=remote_jobs)).scalars())
    if not chosen:
        return []
    statement = update(remote_jobs).where(_r.id.in_(chosen), *_orphan()).values(removed_at=now())
    return list(connection.execute(statement.returning(_r.id)).scalars())


def page(
    connection: Connection, limit: int, offset: int, rooms: Sequence[str] | None = None
) -> tuple[list[WorkerView], int]:
    """Remote workers by id, those that serve jobs of these rooms; and how many there are."""
    chosen = select(_w.incarnation, _w.name, _w.seen_at).where(_w.kind == REMOTE)
    if rooms is not None:
        serving = select(_link.worker_incarnation).join(remote_jobs, _r.id == _link.registration)
        chosen = chosen.where(_w.incarnation.in_(serving.where(_r.room_id.in_(rooms), _r.removed_at.is_(None))))
    total = connection.execute(select(func.count()).select_from(chosen.subquery())).scalar_one()
    rows = connection.execute(chosen.order_by(_w.name).limit(limit).offset(offset)).all()
    names = _served(connection, [row.incarnation for row in rows])
    return [WorkerView(row.name, row.seen_at, names.get(row.incarnation, [])) for row in rows], total


def _served(connection: Connection, incarnations: Sequence[str]) -> dict[str, list[str]]:
    query = (
        select(_link.worker_incarnation, _r.room_id, _r.category, _r.name)
        .join(remote_jobs, _r.id == _link.registration)
        .where(_link.worker_incarnation.in_(incarnations), _r.removed_at.is_(None))
        .order_by(_r.room_id, _r.category, _r.name)
    )
    found: dict[str, list[str]] = {}
    for incarnation, *name in connection.execute(query):
        found.setdefault(incarnation, []).append(":".join(name))
    return found
