"""Cancel and delete as statements: what the record decides; hints to workers come after the commit, from others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Update,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    update,
)

from celery_jobs.records import reads
from celery_jobs.records.clock import now
from celery_jobs.records.errors import ForceImpossible, JobNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.moves import move, touched
from celery_jobs.records.record import JobRecord
from celery_jobs.records.states import EXECUTING, CancelMode, CancelOutcome, JobKind, JobStatus
from celery_jobs.records.tables import idempotency_keys, jobs, status_in, workers
from celery_jobs.records.work import repeatable

_c = jobs.c
_S = JobStatus

# only a worker that knows nothing of us may still run what was published to it
_WITH_FOREIGN_WORKER = and_(_c.kind == str(JobKind.foreign), _c.dispatched_at.is_not(None))

_REMOTE = _c.kind == str(JobKind.remote)

PREFORK_POOL = "prefork"

_WHO = (_c.status, _c.worker, _c.attempt)


@dataclass(frozen=True, slots=True)
class CancelAnswer:
    """What a cancel did; `worker` runs the code when the outcome is requested.

    `at_once` when this very request ended the job, which was not running.
    """

    outcome: CancelOutcome
    record: JobRecord
    worker: str | None
    at_once: bool = False


def _mode(ask: Any) -> Any:
    """A coroutine is interrupted and a pending job just canceled, whatever was asked; force is for plain functions."""
    plain = case((_c.interruptible.is_(True), literal(str(CancelMode.interrupt))), else_=literal(str(CancelMode.wait)))
    forced = and_(ask, ~status_in(_S.pending), func.coalesce(_c.interruptible, False).is_(False))
    return case((forced, literal(str(CancelMode.force))), else_=func.coalesce(_c.cancel_mode, plain))


def _cancel(*guards: Any) -> Update:
    # one UPDATE for both: two would let a retry slip from running to pending between them
    return move(
        {_S.pending: _S.canceled, _S.running: _S.canceling},
        _c.id == bindparam("job_id"),
        ~_REMOTE,
        *guards,
        cancel_requested_at=func.coalesce(_c.cancel_requested_at, now()),
        cancel_mode=_mode(bindparam("force")),
    ).returning(*_WHO)


_CANCEL = _cancel(_c.deleted_at.is_(None), ~_WITH_FOREIGN_WORKER)
# ending a plain function takes a process of its own, which only a prefork worker has
_ENDABLE = or_(
    status_in(_S.pending),
    _c.interruptible.is_(True),
    exists(
        select(workers.c.incarnation).where(
            workers.c.incarnation == _c.worker_incarnation, workers.c.pool == PREFORK_POOL
        )
    ),
)
_CANCEL_BY_FORCE = _CANCEL.where(_ENDABLE)
_CANCEL_FOREIGN = move(
    {_S.pending: _S.canceling},
    _c.id == bindparam("job_id"),
    _c.deleted_at.is_(None),
    _WITH_FOREIGN_WORKER,
    cancel_requested_at=func.coalesce(_c.cancel_requested_at, now()),
    cancel_mode=func.coalesce(_c.cancel_mode, str(CancelMode.wait)),
).returning(*_WHO)
# nobody sees into a remote worker, so nothing could end a wait for it; it is told, and its late report is refused
_CANCEL_REMOTE = move(
    {_S.pending: _S.canceled, _S.running: _S.canceled},
    _c.id == bindparam("job_id"),
    _REMOTE,
    _c.deleted_at.is_(None),
    cancel_requested_at=func.coalesce(_c.cancel_requested_at, now()),
    cancel_mode=func.coalesce(_c.cancel_mode, str(CancelMode.interrupt)),
).returning(*_WHO)
_FORCE_LATER = (
    update(jobs)
    .where(
        _c.id == bindparam("job_id"),
        status_in(_S.canceling),
        func.coalesce(_c.interruptible, False).is_(False),
        or_(_c.cancel_mode.is_(None), _c.cancel_mode != str(CancelMode.force)),
        _ENDABLE,
    )
    .values(cancel_mode=str(CancelMode.force), **touched())
)


def cancel(
    connection: Connection, job_id: JobId, model: type[JobRecord] = JobRecord, *, force: bool = False
) -> CancelAnswer:
    """Ask for cancellation; repeating it is fine. JobNotFound when unknown or deleted.

    With `force` a running plain function is ended with its process; ForceImpossible where it has none of its own.
    """
    record, moved = _ask(connection, job_id, model, force)
    # it moved between two statements, such as by a retry; what still runs in spite of force cannot be forced
    while record.status is _S.pending or (record.status is _S.running and not force):
        record, moved = _ask(connection, job_id, model, force)
    if force and record.status in EXECUTING and record.cancel_mode not in _FORCED:
        raise ForceImpossible(job_id)
    return CancelAnswer(_outcome(record.status), record, record.worker, moved and record.status is _S.canceled)


_FORCED = (CancelMode.force, CancelMode.interrupt)


def _ask(connection: Connection, job_id: JobId, model: type[JobRecord], force: bool) -> tuple[JobRecord, bool]:
    """The record now, and whether this request moved it."""
    named = {"job_id": job_id}
    moved = connection.execute(_CANCEL_BY_FORCE if force else _CANCEL, named | {"force": force}).first()
    moved = moved or connection.execute(_CANCEL_FOREIGN, named).first()
    moved = moved or connection.execute(_CANCEL_REMOTE, named).first()
    if moved is None and force:
        connection.execute(_FORCE_LATER, named)
    return reads.record(connection, job_id, model), moved is not None


def _outcome(status: JobStatus) -> CancelOutcome:
    if status is _S.canceled:
        return CancelOutcome.canceled
    return CancelOutcome.requested if status is _S.canceling else CancelOutcome.too_late


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a delete left behind: code may still run, on `worker`; `at_once` when it ended a job that had not begun."""

    executing: bool
    worker: str | None
    celery_id: str  # by which a worker knows the run
    at_once: bool = False


_DELETE_CANCELS = _cancel(_c.deleted_at.is_(None))
# what hiding a job writes; nothing that is large or anybody's own outlives it
HIDDEN: dict[str, Any] = {
    "deleted_at": now(),
    "args": "[]",
    "kwargs": "{}",
    "result": null(),
    "extra": null(),
    "error_traceback": null(),
    **touched(),
}
_HIDE = (
    update(jobs)
    .where(_c.id == bindparam("job_id"), _c.deleted_at.is_(None))
    .values(**HIDDEN)
    .returning(*_WHO, _c.celery_id)
)
_HIDDEN = select(*_WHO, _c.celery_id).where(_c.id == bindparam("job_id"), _c.deleted_at.is_not(None))


@repeatable
def delete_job(connection: Connection, job_id: JobId, *, again: bool = False) -> Deleted:
    """Cancel and hide a job; its row stays until nothing can arrive for it any more. JobNotFound when there is none.

    `again`: an earlier try may have done it and its answer was lost.
    """
    moved = connection.execute(_DELETE_CANCELS, {"job_id": job_id, "force": False}).first()
    moved = moved or connection.execute(_CANCEL_REMOTE, {"job_id": job_id}).first()
    row = connection.execute(_HIDE, {"job_id": job_id}).first()
    if row is None and again:
        row = connection.execute(_HIDDEN, {"job_id": job_id}).first()
    if row is None:
        raise JobNotFound(job_id)
    connection.execute(delete(idempotency_keys).where(idempotency_keys.c.job_id == job_id))
    at_once = moved is not None and moved.status == str(_S.canceled)
    return Deleted(row.status == str(_S.canceling), row.worker, row.celery_id or job_id, at_once)


EXPIRE_BATCH = 500
_OVER = (_c.expires_at.is_not(None), _c.expires_at <= now())  # the first names the partial index


def any_expired(connection: Connection) -> bool:
    """The look before `expire`, which writes also when it finds none."""
    return connection.execute(select(_c.seq).where(status_in(_S.pending), *_OVER).limit(1)).first() is not None


def expire(connection: Connection, most: int = EXPIRE_BATCH) -> list[JobId]:
    """Cancel the waiting jobs whose time to start has passed, at most so many."""
    chosen = select(_c.seq).where(status_in(_S.pending), *_OVER).order_by(_c.expires_at).limit(most)
    seqs = connection.execute(chosen.with_for_update(skip_locked=True)).scalars().all()
    if not seqs:
        return []
    statement = move(
        {_S.pending: _S.canceled},
        _c.seq.in_(seqs),
        *_OVER,
        error="expired: the job did not start in time",
    ).returning(_c.id)
    return [JobId(row.id) for row in connection.execute(statement)]
