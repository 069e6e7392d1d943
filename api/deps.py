"""What endpoints are given: the scheduler, the hub of the streams, the path's job id, and who may call them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from celery_jobs.api import auth
from celery_jobs.api.health import HealthWatch
from celery_jobs.api.problems import id_with_slash
from celery_jobs.api.stream.hub import Hub
from celery_jobs.records.errors import InvalidJobId
from celery_jobs.records.ids import JobId, parse_job_id
from celery_jobs.tasks.scheduler import CeleryScheduler


async def get_scheduler(request: Request) -> CeleryScheduler:
    """The scheduler of the running service."""
    return request.app.state.scheduler


async def get_hub(request: Request) -> Hub:
    """The hub of the open streams."""
    return request.app.state.hub


async def path_job_id(
    request: Request, job_id: Annotated[str, Path(description="A ULID in any case, or a UUID.")]
) -> JobId:
    """The job id that the path spells; InvalidJobId when it spells none."""
    bad_id = id_with_slash(request.scope)
    if bad_id is not None:
        raise InvalidJobId(bad_id)
    return parse_job_id(job_id)


async def get_health(request: Request) -> HealthWatch:
    """The watch over what the service needs."""
    return request.app.state.health


HealthDep = Annotated[HealthWatch, Depends(get_health)]
SchedulerDep = Annotated[CeleryScheduler, Depends(get_scheduler)]
HubDep = Annotated[Hub, Depends(get_hub)]
JobIdDep = Annotated[JobId, Depends(path_job_id)]

MayRead = Depends(auth.reader)
MayCancel = Depends(auth.canceler)
IsAdmin = Depends(auth.admin)

LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="Resume after this event.")]
PollInterval = Annotated[
    float,
    Query(gt=0, le=60, allow_inf_nan=False, description="Seconds: the longest time that a change may go unseen."),
]
