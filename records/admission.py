"""Admission: which pending jobs may go to the broker now (contract, section 5).

The queue's row is the lock: whoever holds it counts what is active and marks what fills the free slots. Claims and
finishes take no lock, since they never raise the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Text,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
    update,
)

from celery_jobs.records.clock import from_now, now
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import JobKind, JobStatus
from celery_jobs.records.submit import CALL
from celery_jobs.records.tables import jobs, queues, status_in, workers

_c = jobs.c
_PENDING = status_in(JobStatus.pending)

# without a limit the broker holds this many jobs for each live slot, and this many when no worker is up: enough that
# no slot waits for the next dispatch, few enough that priority, order and pause still mean something
HELD_PER_SLOT = 4
HELD_AT_LEAST = 16


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A job that was just admitted and must now be published; all it takes to build the message."""

    id: JobId
    task: str
    queue: str
    args: str
    kwargs: str
    attempt: int
    retries: int
    kind: JobKind
    celery_id: str


_OUTGOING = (
    *(_c.id, _c.task, _c.queue, _c.args, _c.kwargs, _c.attempt, _c.retries, _c.kind, _c.celery_id, _c.function),
    *(_c.priority, _c.seq),
)


def _outgoing(row: Any) -> Outgoing:
    fields = row._mapping
    return Outgoing(
        id=JobId(fields["id"]),
        task=fields["task"] if fields["function"] is None else CALL,
        queue=fields["queue"],
        args=fields["args"],
        kwargs=fields["kwargs"],
        attempt=fields["attempt"],
        retries=fields["retries"],
        kind=JobKind(fields["kind"]),
        celery_id=fields["celery_id"] or fields["id"],
    )


def limit_column() -> ColumnElement[int | None]:
    """The limit in force: a value set at run time wins over the start value."""
    return case((queues.c.run_limit_set, queues.c.run_limit), else_=queues.c.start_limit)


_OWN = _c.kind == str(JobKind.own)
# In the words of the partial indexes (records/tables.py), since SQLite recognizes them in no others: a look at what is
# active then costs the same however much waits. The pending ones among the active are those that were handed over.
_ACTIVE = or_(
    status_in(JobStatus.running, JobStatus.canceling),
    and_(_PENDING, _c.dispatched_at.is_not(None)),
)
HANDED_OVER = and_(_PENDING, _ACTIVE)  # to the broker, and not yet started
_WAITING = and_(
    _PENDING,
    _c.dispatched_at.is_(None),
    or_(_c.run_at.is_(None), _c.run_at <= now()),
    or_(_c.expires_at.is_(None), _c.expires_at > now()),
)

_LIMIT_IN_FORCE = select(limit_column()).where(queues.c.name == bindparam("queue_name")).scalar_subquery()


def _room(queue: ColumnElement[str], limit: ColumnElement[Any]) -> ColumnElement[int]:
    """SQL for how many more jobs of a queue may be handed over; may be negative after a limit was lowered."""
    active, handed_over = _number(queue, _ACTIVE), _number(queue, HANDED_OVER)
    wanted = HELD_PER_SLOT * live_slots(queue)
    held = case((wanted > HELD_AT_LEAST, wanted), else_=HELD_AT_LEAST)
    # filled up when half is gone: one look then serves many jobs, and no slot has to wait for it
    return case((limit.is_not(None), limit - active), (2 * handed_over <= held, held - handed_over), else_=0)


def _number(queue: ColumnElement[str], which: ColumnElement[bool]) -> ColumnElement[int]:
    return select(func.count()).where(_c.queue == queue, which).scalar_subquery()


def live_slots(queue: ColumnElement[str]) -> ColumnElement[int]:
    """How many jobs of the queue its live workers can run at once."""
    alive = and_(workers.c.lease_until > now(), workers.c.stopping.is_(False))
    served = workers.c.queues.like(literal('%"') + queue + literal('"%'))  # a JSON list of names
    return select(func.coalesce(func.sum(workers.c.slots), 0)).where(alive, served).scalar_subquery()


def _clamped(room: ColumnElement[int], most: ColumnElement[int]) -> ColumnElement[int]:
    """At least 0 and at most `most`; the room is computed once."""
    found = select(room.label("room")).subquery()
    return select(case((found.c.room <= 0, 0), (found.c.room < most, found.c.room), else_=most)).scalar_subquery()


_FIRST = select(_c.seq).where(_c.queue == queues.c.name, _WAITING).order_by(_c.priority.desc(), _c.seq).limit(1)
_QUEUES_WITH_WORK = select(
    queues.c.name,
    limit_column().label("limit"),
    _number(queues.c.name, _ACTIVE).label("active"),
    _number(queues.c.name, HANDED_OVER).label("handed_over"),
).where(
    queues.c.paused.is_(False),
    _FIRST.scalar_subquery().is_not(None),  # EXISTS has no order, by which SQLite would find the partial index
)
_LOCK = (
    select(queues.c.paused, limit_column().label("limit"))
    .where(queues.c.name == bindparam("queue_name"))
    .with_for_update()
)
_COUNT_ACTIVE = select(func.count()).where(_c.queue == bindparam("queue_name"), _ACTIVE)
_NEXT = (
    select(_c.seq)
    .where(_c.queue == bindparam("queue_name"), _WAITING)
    .order_by(_c.priority.desc(), _c.seq)
    .limit(_clamped(_room(bindparam("queue_name", type_=Text()), _LIMIT_IN_FORCE), bindparam("most", type_=Integer())))
)
# PostgreSQL plans an IN as a join over every pending job; an array it looks up by key
_HAND_OVER = {
    dialect: update(jobs)
    .where(chosen, _PENDING, _c.dispatched_at.is_(None))
    .values(dispatched_at=now(), published_at=now(), publications=1)
    .returning(*_OUTGOING)
    for dialect, chosen in (
        ("sqlite", _c.seq.in_(_NEXT)),
        ("postgresql", _c.seq == any_(func.array(_NEXT.scalar_subquery()))),
    )
}


def queues_with_work(connection: Connection) -> list[str]:
    """The queues where a job waits that could be admitted; the look without the lock."""
    rows = connection.execute(_QUEUES_WITH_WORK).all()
    return [row.name for row in rows if _has_room(connection, row.name, row.limit, row.active, row.handed_over)]


def _has_room(connection: Connection, queue: str, limit: int | None, active: int, handed_over: int) -> bool:
    """The same as `_room`, which in one statement with the rest would be planned anew each time."""
    if limit is not None:
        return active < limit
    if 2 * handed_over <= HELD_AT_LEAST:
        return True  # whatever the workers' slots are
    slots = connection.execute(select(live_slots(literal(queue)))).scalar_one()
    return 2 * handed_over <= HELD_PER_SLOT * slots


def admit(connection: Connection, queue: str, most: int = 200) -> list[Outgoing]:
    """Mark the next jobs that fit as handed over, in the order in which they shall start."""
    named = {"queue_name": queue}
    row = connection.execute(_LOCK, named).first()
    if row is None or row.paused:
        return []
    # a statement of its own after the lock, so that it sees what the last holder of the lock committed
    rows = connection.execute(_HAND_OVER[connection.dialect.name], named | {"most": most}).all()
    return [_outgoing(row) for row in sorted(rows, key=lambda row: (-row.priority, row.seq))]


def take_back(connection: Connection, queue: str) -> int:
    """After a limit was lowered or a queue paused: un-dispatch what has not started and no longer fits; how many."""
    row = connection.execute(_LOCK, {"queue_name": queue}).first()
    if row is None:
        return 0
    handed_over = select(_c.seq).where(_c.queue == queue, HANDED_OVER, _OWN)
    if not row.paused:
        if row.limit is None:
            return 0
        excess = connection.execute(_COUNT_ACTIVE, {"queue_name": queue}).scalar_one() - row.limit
        handed_over = handed_over.order_by(_c.priority, _c.seq.desc()).limit(max(excess, 0))
    return _clear(connection, _c.seq.in_(handed_over))


def take_all_back(connection: Connection) -> int:
    """The broker inside this process is new and empty: everything that was handed to the last one waits again."""
    return _clear(connection, _OWN)


def unmark(connection: Connection, unpublished: Sequence[JobId]) -> int:
    """Jobs whose message the broker refused wait again."""
    return _clear(connection, _c.id.in_(unpublished))


def _clear(connection: Connection, which: ColumnElement[bool]) -> int:
    statement = (
        update(jobs)
        .where(which, HANDED_OVER)  # one that a worker claimed meanwhile keeps its slot
        .values(dispatched_at=null())
    )
    return connection.execute(statement).rowcount


def silent_queues(connection: Connection, seconds: float) -> list[str]:
    """The queues with jobs that were published so long ago and did not start."""
    query = select(_c.queue).where(_ACTIVE, HANDED_OVER, _OWN, _c.published_at <= from_now(-seconds)).distinct()
    return list(connection.execute(query).scalars())


def overdue(
    connection: Connection, first_seconds: float, empty: Sequence[str] = (), most: int = 200
) -> list[tuple[Outgoing, float]]:
    """Jobs handed over but not started for longer than their back-off, with the seconds since the hand-over.

    In queues that are `empty` no message can be on its way for long, so there is no back-off.
    """
    silent = _c.published_at <= from_now(-first_seconds)
    backed_off = _c.published_at <= from_now(-first_seconds * _doubling(_c.publications))
    query = (
        select(*_OUTGOING, _c.dispatched_at, now().label("clock"))
        .where(HANDED_OVER, _OWN, or_(backed_off, and_(silent, _c.queue.in_(empty))))
        .order_by(_c.seq)
        .limit(most)
    )
    found: list[Any] = []
    # queue by queue, as the partial index begins with it: asked for all at once, SQLite reads every job that waits
    for name in connection.execute(select(queues.c.name)).scalars().all():
        found += connection.execute(query.where(_c.queue == name)).all()
    found.sort(key=lambda row: row.seq)
    return [(_outgoing(row), (row.clock - row.dispatched_at).total_seconds()) for row in found[:most]]


def handed_over(connection: Connection) -> dict[str, int]:
    """How many jobs of each queue should have a message at the broker now."""
    query = select(_c.queue, func.count().label("number")).where(_ACTIVE, HANDED_OVER, _OWN).group_by(_c.queue)
    return {row.queue: row.number for row in connection.execute(query)}


def unstarted(connection: Connection, queue: str, seconds: float, most: int = 200) -> list[Outgoing]:
    """The jobs of a queue that were published so long ago and did not start, whatever their back-off."""
    query = (
        select(*_OUTGOING)
        .where(_ACTIVE, HANDED_OVER, _OWN, _c.queue == queue, _c.published_at <= from_now(-seconds))
        .order_by(_c.priority.desc(), _c.seq)
        .limit(most)
    )
    return [_outgoing(row) for row in connection.execute(query)]


def _doubling(publications: ColumnElement[int]) -> ColumnElement[int]:
    # not every SQLite has power()
    return case(*((publications == n, 2 ** (n - 1)) for n in range(1, 10)), else_=512)


def overtaken(connection: Connection, job: Outgoing) -> bool:
    """True when a job of the same queue that was handed over after this one has started: the message is lost."""
    mine = select(_c.seq, _c.published_at).where(_c.id == job.id).subquery()
    # those submitted later: few rows to look at, and a job that goes out after this one is mostly one of them
    later = select(_c.seq).where(
        _c.seq > mine.c.seq,
        _c.queue == job.queue,
        _c.published_at > mine.c.published_at,
        _c.started_at > mine.c.published_at,
    )
    return connection.execute(later.limit(1)).first() is not None


def republished(connection: Connection, job: Outgoing, seconds: float = 0.0) -> bool:
    """Count one more publication; False when the job has started, ended or was taken back meanwhile.

    False too when it was published less than `seconds` ago, by another process that looked at the same time.
    """
    statement = (
        update(jobs)
        .where(_c.id == job.id, _c.attempt == job.attempt, HANDED_OVER, _c.published_at <= from_now(-seconds))
        .values(published_at=now(), publications=_c.publications + 1)
    )
    return connection.execute(statement).rowcount == 1
