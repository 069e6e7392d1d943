"""The tasks that may be submitted, and submitting any of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from celery_jobs.api.body import ANY_OBJECT, keyword_arguments
from celery_jobs.api.deps import MayRead, SchedulerDep, TaskName
from celery_jobs.api.schemas.answers import SUBMITTED
from celery_jobs.api.schemas.jobs import Accepted
from celery_jobs.api.schemas.problem import problems
from celery_jobs.api.submission import SubmissionDep, SubmitRoute, documented
from celery_jobs.tasks.catalog import TaskView

router = APIRouter()
submits = APIRouter(route_class=SubmitRoute)
Arguments = Annotated[bytes, Depends(keyword_arguments)]
_DOCUMENTED = documented(ANY_OBJECT)


@router.get("", dependencies=[MayRead])
async def list_tasks(scheduler: SchedulerDep) -> list[TaskView]:
    """Every task that may be submitted, with the schema of its arguments."""
    return scheduler.tasks()


@submits.post(
    "/{name}",
    status_code=202,
    response_model=Accepted,
    responses=SUBMITTED | problems(404, 422, 501),
    openapi_extra=_DOCUMENTED,
)
async def submit_task(name: TaskName, arguments: Arguments, submission: SubmissionDep) -> Response:
    """Submit a task; the body holds its keyword arguments."""
    return await submission.accept(name, arguments)
