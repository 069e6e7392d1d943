"""Bodies of the second API: what is sent, and what is answered (contract, section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from celery_jobs.records.ids import JobId, uuid_of
from celery_jobs.records.remote.names import LONGEST
from celery_jobs.records.remote.registering import Registered
from celery_jobs.records.remote.tasks import RemoteTask
from celery_jobs.records.remote.workers import Beat, WorkerView
from celery_jobs.records.states import TaskStatus

T = TypeVar("T")
WorkerId = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Registration(_Body):
    """A job that the calling worker serves from now on."""

    category: str
    name: Annotated[str, StringConstraints(min_length=1, max_length=LONGEST, pattern="^[^:/]+$")]
    json_schema: dict[str, Any] = Field(default={}, alias="schema", description="JSON schema of the payload.")
    worker_id: WorkerId | None = Field(default=None, description="Without it the identity is the worker.")


class Submission(_Body):
    """What a task is called with."""

    payload: dict[str, Any] = {}


class Claim(_Body):
    """Which worker claims; without it the identity is the worker."""

    worker_id: WorkerId | None = None


class TaskReport(_Body):
    """What a worker says of its task, or that the task shall not go on."""

    status: Annotated[TaskStatus, Field(strict=False)]
    error: str | None = Field(default=None, description="Why it failed: `ExceptionType: message`. With `failed` only.")
    result: Any = Field(default=None, description="What it came to. With `completed` only.")
    worker_id: WorkerId | None = Field(default=None, description="The report counts for this worker only.")


class RemoteJobView(BaseModel):
    """A registered job and the workers that serve it."""

    id: UUID
    room_id: str
    category: str
    name: str
    full_name: str
    json_schema: dict[str, Any] = Field(alias="schema")
    workers: list[str]

    @classmethod
    def of(cls, job: Registered) -> RemoteJobView:
        """The view of a registered job."""
        name = job.full_name
        return cls(
            id=uuid_of(JobId(job.id)),
            room_id=name.room_id,
            category=name.category,
            name=name.name,
            full_name=str(name),
            schema=pydantic_core.from_json(job.schema_json),
            workers=list(job.workers),
        )


class RemoteTaskView(BaseModel):
    """One execution of a registered job."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    id: UUID
    job_name: str = Field(examples=["@global:modifiers:Rotate"])
    room_id: str
    payload: dict[str, Any]
    status: TaskStatus
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error: str | None = None
    worker_id: str | None = Field(default=None, description="The worker that holds it, or was the last to.")
    created_by_id: str | None = None
    result: Any = None
    queue_position: int | None = Field(default=None, description="1: the next of its job. null unless pending.")


class ReportedTask(RemoteTaskView):
    """The task as it now is, and what its worker should stop."""

    cancelled_task_ids: list[UUID]


class Claimed(BaseModel):
    """The task that is now the worker's; null where none waits."""

    task: RemoteTaskView | None


class BeatView(BaseModel):
    """A worker that was just heard of, and the tasks that it should stop."""

    id: str
    last_heartbeat: datetime
    cancelled_task_ids: list[UUID]

    @classmethod
    def of(cls, beat: Beat) -> BeatView:
        """The view of a sign of life."""
        return cls(
            id=beat.id,
            last_heartbeat=beat.last_heartbeat,
            cancelled_task_ids=[uuid_of(each) for each in beat.cancelled_task_ids],
        )


class WorkerSummary(BaseModel):
    """A worker and the jobs that it serves."""

    id: str
    last_heartbeat: datetime
    jobs: list[str]

    @classmethod
    def of(cls, worker: WorkerView) -> WorkerSummary:
        """The view of a listed worker."""
        return cls(id=worker.id, last_heartbeat=worker.last_heartbeat, jobs=list(worker.jobs))


class Swept(BaseModel):
    """Whether a sweep was made; there is at most one a second."""

    swept: bool


class Me(BaseModel):
    """Who is calling."""

    id: str


class Page(BaseModel, Generic[T]):
    """A part of a list, and how long the whole is."""

    items: list[T]
    total: int
    limit: int
    offset: int


def task_json(task: RemoteTask, cancelled: Sequence[JobId] | None = None) -> bytes:
    """The task as JSON; payload and result go out as they are stored."""
    head: dict[str, Any] = {
        "id": str(uuid_of(task.id)),
        "job_name": task.job_name,
        "room_id": task.room_id,
        "status": task.status,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "completed_at": task.completed_at,
        "error": task.error,
        "worker_id": task.worker_id,
        "created_by_id": task.created_by_id,
        "queue_position": task.queue_position,
    }
    if cancelled is not None:
        head["cancelled_task_ids"] = [str(uuid_of(each)) for each in cancelled]
    result = (task.result_json or "null").encode()
    return b'%s,"payload":%s,"result":%s}' % (pydantic_core.to_json(head)[:-1], task.payload_json.encode(), result)


def page_json(items: Sequence[bytes], total: int, limit: int, offset: int) -> bytes:
    """A page of what is JSON already."""
    return b'{"items":[%s],"total":%d,"limit":%d,"offset":%d}' % (b",".join(items), total, limit, offset)
