"""Remote workers: rows of the workers table whose lease every call of theirs renews (contract, section 8).

Whoever holds the lock of a worker's row is sure of it: a call renews first, so no sweeper takes it away meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    Connection,
    Float,
    Update,
    bindparam,
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
