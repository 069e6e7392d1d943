"""The second API's tables as classes of SQLAlchemy's ORM, for a host app that reads them (contract, section 8).

    await session.scalars(select(Task).where(Task.room_id == "room_123", Task.status == TaskStatus.PENDING))

Views to read, with the names and values of the API; changes are the API's, so a flush that would write one of them
raises InvalidRequestError. Removed jobs, deleted tasks and Celery's own workers are left out. An AsyncSession loads
relationships as it always does, by `selectinload` and the like. The service itself uses no ORM.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Enum, and_, case, event, literal_column, select, type_coerce
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, Mapped, foreign, relationship
from sqlalchemy.types import String, Text, TypeDecorator
from ulid import ULID

from celery_jobs.records.ids import JobId, parse_job_id, uuid_of
from celery_jobs.records.remote.workers import IS_REMOTE, REMOTE
from celery_jobs.records.states import JobStatus, TaskStatus, task_status
from celery_jobs.records.tables import jobs, remote_job_workers, remote_jobs, workers

__all__ = ["Job", "Task", "TaskStatus", "Worker", "WorkerJobLink"]


class UlidAsUuid(TypeDecorator[uuid.UUID]):
    """The 128 bits of a stored ULID as a UUID; a statement may name them in either spelling."""

    impl = String(26)
    cache_ok = True

    def process_bind_param(self, value: uuid.UUID | str | None, dialect: Dialect) -> str | None:
        """As it is stored; InvalidJobId for a text that is no id."""
        if isinstance(value, uuid.UUID):
            return str(ULID.from_uuid(value))
        return None if value is None else parse_job_id(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> uuid.UUID | None:
        """As the API shows it."""
        return None if value is None else uuid_of(JobId(value))


class JsonAsText(TypeDecorator[Any]):
    """What a JSON text says."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """With sorted keys, as schemas are stored."""
        return None if value is None else json.dumps(value, sort_keys=True)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Dicts, lists, texts, numbers."""
        return None if value is None else json.loads(value)


def _status() -> ColumnElement[Any]:
    claimed = and_(jobs.c.status == JobStatus.pending, IS_REMOTE, jobs.c.dispatched_at.is_not(None))
    others = {str(each): _text(task_status(each, claimed=False)) for each in JobStatus}
    word = case((claimed, _text(TaskStatus.CLAIMED)), else_=case(others, value=jobs.c.status))
    return type_coerce(word, Enum(TaskStatus, native_enum=False, values_callable=list))


def _text(status: TaskStatus) -> ColumnElement[str]:
    return literal_column(f"'{status}'", String())


def _id(column: ColumnElement[str]) -> ColumnElement[uuid.UUID]:
    return type_coerce(column, UlidAsUuid())


_jobs = (
    select(
        _id(remote_jobs.c.id).label("id"),
        *(remote_jobs.c.room_id, remote_jobs.c.category, remote_jobs.c.name),
        type_coerce(remote_jobs.c.schema, JsonAsText()).label("schema"),
    )
    .where(remote_jobs.c.removed_at.is_(None))
    .subquery("job")
)
_workers = (
    select(workers.c.name.label("id"), workers.c.seen_at.label("last_heartbeat"))
    .where(workers.c.kind == literal_column(f"'{REMOTE}'"))
    .subquery("worker")
)
_links = (
    select(workers.c.name.label("worker_id"), _id(remote_job_workers.c.registration).label("job_id"))
    .join(workers, workers.c.incarnation == remote_job_workers.c.worker_incarnation)
    .subquery("worker_job_link")
)
_tasks = (
    select(
        _id(jobs.c.id).label("id"),
        _id(jobs.c.registration).label("job_id"),
        jobs.c.job_name,
        jobs.c.worker.label("worker_id"),
        jobs.c.room_id,
        jobs.c.submitted_by.label("created_by_id"),
        type_coerce(jobs.c.kwargs, JsonAsText()).label("payload"),
        _status().label("status"),
        jobs.c.submitted_at.label("created_at"),
        jobs.c.started_at,
        jobs.c.finished_at.label("completed_at"),
        jobs.c.error,
        type_coerce(jobs.c.result, JsonAsText()).label("result"),
    )
    .where(jobs.c.room_id.is_not(None), jobs.c.deleted_at.is_(None))
    .subquery("task")
)


class _View(DeclarativeBase):
    """A base of its own, so that nothing of this is in the metadata of the host."""


def _key(*columns: ColumnElement[Any]) -> dict[str, Any]:
    return {"primary_key": columns}


class WorkerJobLink(_View):
    """A worker serves a job."""

    __table__ = _links
    __mapper_args__ = _key(_links.c.worker_id, _links.c.job_id)

    worker_id: Mapped[str]
    job_id: Mapped[uuid.UUID]


class Job(_View):
    """A job that remote workers registered."""

    __table__ = _jobs
    __mapper_args__ = _key(_jobs.c.id)

    id: Mapped[uuid.UUID]
    room_id: Mapped[str]  # or "@global"
    category: Mapped[str]
    name: Mapped[str]
    schema: Mapped[dict[str, Any]]

    tasks: Mapped[list[Task]] = relationship(
        primaryjoin=lambda: Job.id == foreign(Task.job_id), order_by=lambda: Task.created_at, viewonly=True
    )
    workers: Mapped[list[Worker]] = relationship(
        secondary=_links,
        primaryjoin=lambda: Job.id == _links.c.job_id,
        secondaryjoin=lambda: Worker.id == _links.c.worker_id,
        order_by=lambda: Worker.id,
        viewonly=True,
    )

    @property
    def full_name(self) -> str:
        """`<room>:<category>:<name>`"""
        return f"{self.room_id}:{self.category}:{self.name}"


class Worker(_View):
    """A remote worker; its id is the identity, or one that `POST /workers` gave to it."""

    __table__ = _workers
    __mapper_args__ = _key(_workers.c.id)

    id: Mapped[str]
    last_heartbeat: Mapped[datetime]  # in UTC, with its offset

    jobs: Mapped[list[Job]] = relationship(
        secondary=_links,
        primaryjoin=lambda: Worker.id == _links.c.worker_id,
        secondaryjoin=lambda: Job.id == _links.c.job_id,
        order_by=lambda: (Job.room_id, Job.category, Job.name),
        viewonly=True,
    )
    tasks: Mapped[list[Task]] = relationship(
        primaryjoin=lambda: and_(Worker.id == foreign(Task.worker_id), Task.job_id.is_not(None)),
        order_by=lambda: Task.created_at,
        viewonly=True,
    )

    def is_alive(self, threshold: timedelta) -> bool:
        """Whether it was heard of within the threshold, by this machine's clock."""
        return datetime.now(UTC) - self.last_heartbeat < threshold


class Task(_View):
    """One execution of a job; `worker_id` names the worker that holds it or was the last to, also one that has gone."""

    __table__ = _tasks
    __mapper_args__ = _key(_tasks.c.id)

    id: Mapped[uuid.UUID]
    job_id: Mapped[uuid.UUID | None]  # None where Celery's workers serve the job
    job_name: Mapped[str]
    worker_id: Mapped[str | None]
    room_id: Mapped[str]  # where it was submitted
    created_by_id: Mapped[str | None]
    payload: Mapped[dict[str, Any]]
    status: Mapped[TaskStatus]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    error: Mapped[str | None]
    result: Mapped[Any]

    job: Mapped[Job | None] = relationship(  # None once it was removed
        primaryjoin=lambda: foreign(Task.job_id) == Job.id, viewonly=True
    )
    worker: Mapped[Worker | None] = relationship(  # a Celery worker may have the same name
        primaryjoin=lambda: and_(foreign(Task.worker_id) == Worker.id, Task.job_id.is_not(None)), viewonly=True
    )


def _refuse(_mapper: Any, _connection: Any, target: object) -> None:
    raise InvalidRequestError(f"{type(target).__name__} is a view to read; use the API to change what it shows")


for _what in ("before_insert", "before_update", "before_delete"):
    event.listen(_View, _what, _refuse, propagate=True)
