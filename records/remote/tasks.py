"""Tasks as the second API shows them: rows of the one job table that were submitted in a room (contract, section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, cast

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, select

from celery_jobs.records.errors import InvalidJobId, RemoteTaskNotFound
from celery_jobs.records.ids import JobId, parse_job_id, ulid_of, uuid_of
from celery_jobs.records.remote.workers import IS_REMOTE
from celery_jobs.records.states import JobKind, JobStatus, TaskStatus, task_status
from celery_jobs.records.submit import NewJob
from celery_jobs.records.tables import jobs, status_in

_c = jobs.c
_S = JobStatus

COLUMNS = (
    *(_c.id, _c.job_name, _c.room_id, _c.kwargs, _c.status, _c.kind, _c.dispatched_at, _c.submitted_at, _c.started_at),
    *(_c.finished_at, _c.error, _c.worker, _c.submitted_by, _c.result, _c.registration, _c.seq),
)


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """One task; `payload_json` and `result_json` are JSON texts."""

    id: JobId
    job_name: str
    room_id: str
    payload_json: str
    status: TaskStatus
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    error: str | None
    worker_id: str | None
    created_by_id: str | None
    result_json: str | None
    registration: str | None  # None where Celery's workers run it
    queue_position: int | None = None

    @classmethod
    def of(cls, row: Any, queue_position: int | None = None) -> Self:
        """The task of a row with COLUMNS."""
        claimed = row.dispatched_at is not None and row.kind == JobKind.remote
        return cls(
            id=JobId(row.id),
            job_name=row.job_name,
            room_id=row.room_id,
            payload_json=row.kwargs,
            status=task_status(JobStatus(row.status), claimed=claimed),
            created_at=row.submitted_at,
            started_at=row.started_at,
            completed_at=row.finished_at,
            error=row.error,
            worker_id=row.worker,
            created_by_id=row.submitted_by,
            result_json=row.result,
            registration=row.registration,
            queue_position=queue_position,
        )

    @classmethod
    def submitted(cls, job: NewJob, by: str) -> Self:
        """The task as it was recorded for this identity, without a look at the record."""
        return cls(
            id=job.id,
            job_name=job.job_name or job.task,
            room_id=job.room_id or "",
            payload_json=job.kwargs,
            status=TaskStatus.PENDING,
            created_at=ulid_of(job.id).datetime,
            started_at=None,
            completed_at=None,
            error=None,
            worker_id=None,
            created_by_id=by,
            result_json=None,
            registration=job.registration,
        )


def parse_task_id(text: str) -> JobId:
    """The task's id, spelled as a UUID or a ULID; RemoteTaskNotFound for what is neither."""
    try:
        return parse_job_id(text)
    except InvalidJobId:
        raise RemoteTaskNotFound(text) from None


def spelled(task_id: JobId) -> str:
    """The id as the second API spells it."""
    return str(uuid_of(task_id))


_SHOWN = (_c.room_id.is_not(None), _c.deleted_at.is_(None))
_TASK = cast("Select[Any]", select(*COLUMNS)).where(_c.id == bindparam("task_id"), *_SHOWN)


def row(connection: Connection, task_id: JobId, *more: ColumnElement[Any]) -> Any:
    """The row of a task; RemoteTaskNotFound."""
    query = _TASK.add_columns(*more) if more else _TASK
    found = connection.execute(query, {"task_id": task_id}).first()
    if found is None:
        raise RemoteTaskNotFound(spelled(task_id))
    return found


def task(connection: Connection, task_id: JobId) -> RemoteTask:
    """A task; RemoteTaskNotFound."""
    found = row(connection, task_id)
    return RemoteTask.of(found, positions(connection, [found]).get(found.id))


def page(
    connection: Connection, room_id: str, limit: int, offset: int, status: TaskStatus | None = None
) -> tuple[list[RemoteTask], int]:
    """The tasks that were submitted in a room, newest first, and how many there are."""
    chosen = (_c.room_id == room_id, *_SHOWN, *(() if status is None else (_in_state(status),)))
    total = connection.execute(select(func.count()).where(*chosen)).scalar_one()
    rows = connection.execute(select(*COLUMNS).where(*chosen).order_by(_c.seq.desc()).limit(limit).offset(offset)).all()
    ahead = positions(connection, rows)
    return [RemoteTask.of(each, ahead.get(each.id)) for each in rows], total


def _in_state(status: TaskStatus) -> ColumnElement[bool]:
    claimed = and_(IS_REMOTE, _c.dispatched_at.is_not(None))
    if status is TaskStatus.PENDING:
        return and_(status_in(_S.pending), ~claimed)
    if status is TaskStatus.CLAIMED:
        return and_(status_in(_S.pending), claimed)
    return status_in(*(each for each in JobStatus if task_status(each, claimed=False) is status))


def positions(connection: Connection, rows: Sequence[Any]) -> dict[str, int]:
    """The places of the pending ones among these tasks in their jobs' order; 1 is the next."""
    of_jobs: dict[tuple[str | None, str], list[Any]] = {}
    for each in rows:
        if each.status == _S.pending and (each.registration is None or each.dispatched_at is None):
            of_jobs.setdefault((each.registration, each.job_name), []).append(each)
    found: dict[str, int] = {}
    for (registration, job_name), waiting in of_jobs.items():
        before, between = _OF_REMOTE if registration is not None else _OF_CELERY
        seqs = [each.seq for each in waiting]
        named = {"job": registration or job_name, "first": min(seqs), "last": max(seqs)}
        ahead: int = connection.execute(before, named).scalar_one()
        rows_between = connection.execute(between, named).scalars() if len(seqs) > 1 else seqs
        order = {seq: place for place, seq in enumerate(rows_between, start=ahead + 1)}
        found |= {each.id: order[each.seq] for each in waiting if each.seq in order}
    return found


def _places(*of_job: ColumnElement[bool]) -> tuple[Select[Any], Select[Any]]:
    """How many pending tasks of a job come before one, and which come between two."""
    pending = (status_in(_S.pending), *of_job)
    before = select(func.count()).where(*pending, _c.seq < bindparam("first"))
    between = select(_c.seq).where(*pending, _c.seq.between(bindparam("first"), bindparam("last"))).order_by(_c.seq)
    return before, between


_OF_REMOTE = _places(_c.registration == bindparam("job"), _c.dispatched_at.is_(None))
_OF_CELERY = _places(_c.job_name == bindparam("job"), _c.registration.is_(None))


def ended(connection: Connection, ids: Sequence[JobId]) -> set[JobId]:
    """Those among these tasks that have ended, or are gone."""
    going_on = select(_c.id).where(_c.id.in_(list(ids)), _c.finished_at.is_(None), *_SHOWN)
    return set(ids) - {JobId(each) for each in connection.execute(going_on).scalars()}
