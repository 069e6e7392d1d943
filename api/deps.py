"""What endpoints are given: the scheduler, the hub of the streams, the path's job id, and who may call them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from celery_jobs.api import auth
from celery_jobs.api.health import HealthWatch
from celery_jobs.api.plugged.service import PluggedService
from celery_jobs.api.problems import id_with_slash
from celery_jobs.api.stream.all_jobs import AllJobs
from celery_jobs.api.stream.hub import Hub
from celery_jobs.api.stream.shared import SharedRows
from celery_jobs.records.errors import InvalidJobId
from celery_jobs.records.ids import JobId, parse_job_id
from celery_jobs.tasks.service import JobService
from celery_jobs.tasks.surface import Scheduler

# told, not checked: what is no id answers 400, and the framework would make it a 422
_PATH_ID = Path(
    description="The job's id: a ULID in any case, or the same 128 bits as a UUID.",
    json_schema_extra={
        "pattern": "^([0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$",
        "examples": ["01JQRS7X6ZJ8T3V5W7Y9A1B3C5", "0195f193-f4df-9234-3d97-87f254158d85"],
    },
)


async def get_scheduler(request: Request) -> Scheduler:
    """The scheduler of the running service, for endpoints of your own."""
    return request.app.state.scheduler


AnyService = JobService | PluggedService


async def get_service(request: Request) -> AnyService:
    """The scheduler as the service's own endpoints know it."""
    return request.app.state.service


async def get_hub(request: Request) -> Hub:
    """The hub of the open streams."""
    return request.app.state.hub


async def get_rows(request: Request) -> SharedRows:
    """The rows that streams begin with."""
    return request.app.state.rows


async def get_all_jobs(request: Request) -> AllJobs:
    """The reader of the streams of all jobs."""
    return request.app.state.all_jobs


async def path_job_id(request: Request, job_id: Annotated[str, _PATH_ID]) -> JobId:
    """The job id that the path spells; InvalidJobId when it spells none."""
    bad_id = id_with_slash(request.scope)
    if bad_id is not None:
        raise InvalidJobId(bad_id)
    return parse_job_id(job_id)


async def get_health(request: Request) -> HealthWatch:
    """The watch over what the service needs."""
    return request.app.state.health


HealthDep = Annotated[HealthWatch, Depends(get_health)]
SchedulerDep = Annotated[AnyService, Depends(get_service)]
HubDep = Annotated[Hub, Depends(get_hub)]
RowsDep = Annotated[SharedRows, Depends(get_rows)]
AllJobsDep = Annotated[AllJobs, Depends(get_all_jobs)]
JobIdDep = Annotated[JobId, Depends(path_job_id)]

TaskName = Annotated[str, Path(description="As `GET /api/v1/tasks` names it.", examples=["compute"])]
QueueName = Annotated[str, Path(description="As tasks, jobs and workers name it.", examples=["jobs"])]

MayRead = Depends(auth.reader)
MayCancel = Depends(auth.canceler)
IsAdmin = Depends(auth.admin)

LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="Resume after this event.")]
PollInterval = Annotated[
    float,
    Query(gt=0, le=60, allow_inf_nan=False, description="Seconds: the longest time that a change may go unseen."),
]
