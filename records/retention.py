"""Forgetting: what ended long ago is hidden, what is hidden is removed once nothing can arrive for it (section 9).

A record that is too old goes the way of a deleted one: streams and lists learn of it alike, and its row, without
arguments and result, stays for a while to stop late messages. Each step is a small batch found by an index of its own,
so no statement is long and a look that finds nothing costs nothing; rows that another process is at are left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, literal_column, select, update

from celery_jobs.records.cancel import HIDDEN
from celery_jobs.records.clock import from_now
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import JobKind
from celery_jobs.records.tables import idempotency_keys, jobs

BATCH = 500

_c = jobs.c
_k = idempotency_keys.c
_DELETED = _c.deleted_at.is_not(None)
_ENDED = _c.finished_at.is_not(None)  # the code of a deleted job may still run, and then counts against its limit
# our messages carry a header, with which a missing row means deleted; literal, so that the partial index is seen to fit
_PUBLISHED_BY_US = (_c.kind == literal_column(f"'{JobKind.own}'"), _c.celery_id.is_(None))


def _outlived(retention_seconds: float) -> tuple[ColumnElement[bool], ...]:
    return (_ENDED, _c.deleted_at.is_(None), _c.finished_at < from_now(-retention_seconds))


def any_outlived(connection: Connection, retention_seconds: float) -> bool:
    """The look before `retire`, which writes also when it finds none."""
    # ordered, since a planner without statistics would read the whole table for the first row that fits
    oldest = select(_c.seq).where(*_outlived(retention_seconds)).order_by(_c.finished_at).limit(1)
    return connection.execute(oldest).first() is not None


def retire(connection: Connection, retention_seconds: float, most: int = BATCH) -> list[JobId]:
    """Hide at most `most` of the jobs that ended before that, oldest first, and free their idempotency keys."""
    oldest = select(_c.seq, _c.id).where(*_outlived(retention_seconds)).order_by(_c.finished_at).limit(most)
    rows = connection.execute(oldest.with_for_update(skip_locked=True)).all()
    if not rows:
        return []
    connection.execute(update(jobs).where(_c.seq.in_([row.seq for row in rows])).values(**HIDDEN))
    ids = [JobId(row.id) for row in rows]
    _free_keys(connection, ids)
    return ids


_FREE = delete(idempotency_keys).where(
    _k.scope == bindparam("in_scope"), _k.key == bindparam("named"), _k.job_id == bindparam("held_by")
)


def _free_keys(connection: Connection, ids: Sequence[JobId]) -> None:
    held = connection.execute(select(_k.scope, _k.key, _k.job_id).where(_k.job_id.in_(ids))).all()
    # in the order in which a batch of submits takes them: in another one the two could wait for each other
    named = [{"in_scope": scope, "named": key, "held_by": job_id} for scope, key, job_id in sorted(map(tuple, held))]
    if named:
        connection.execute(_FREE, named)


def purge_deleted(connection: Connection, own_seconds: float, foreign_seconds: float, most: int = BATCH) -> int:
    """Remove hidden rows that have ended and for which no message can come any more."""
    removed = 0
    for who, seconds in ((_PUBLISHED_BY_US, own_seconds), ((), foreign_seconds)):
        removed += _remove(connection, *who, _DELETED, _ENDED, _c.deleted_at < from_now(-seconds), most=most)
    return removed


def _remove(connection: Connection, *which: Any, most: int) -> int:
    oldest = select(_c.seq).where(*which).order_by(_c.deleted_at).limit(most).with_for_update(skip_locked=True)
    chosen = list(connection.execute(oldest).scalars())
    if chosen:
        connection.execute(delete(jobs).where(_c.seq.in_(chosen)))
    return len(chosen)
