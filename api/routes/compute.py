"""The example task: compute for a while, then 42."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from celery_jobs.api.body import keyword_arguments, request_body
from celery_jobs.api.deps import JobIdDep, MayRead, SchedulerDep
from celery_jobs.api.results import result_response
from celery_jobs.api.schemas.answers import SUBMITTED, WAITED
from celery_jobs.api.schemas.compute import ComputeRequest
from celery_jobs.api.schemas.jobs import Accepted, ResultView
from celery_jobs.api.schemas.problem import problems
from celery_jobs.api.stream.wait import WaitedDep
from celery_jobs.api.submission import SubmissionDep, SubmitRoute, documented

router = APIRouter()
submits = APIRouter(route_class=SubmitRoute)
Arguments = Annotated[bytes, Depends(keyword_arguments)]
_DOCUMENTED = documented(request_body(ComputeRequest))


@submits.post(
    "", status_code=202, response_model=Accepted, responses=SUBMITTED | problems(422), openapi_extra=_DOCUMENTED
)
async def submit_compute(arguments: Arguments, submission: SubmissionDep) -> Response:
    """Submit a computation; the answer says where to follow it."""
    return await submission.accept("compute", arguments)


@router.get(
    "/{job_id}/result", response_model=ResultView, responses=WAITED | problems(400, 404), dependencies=[MayRead]
)
async def get_compute_result(job_id: JobIdDep, scheduler: SchedulerDep, waited: WaitedDep) -> Response:
    """What came of a computation: 42 when it is completed."""
    return result_response(await scheduler.result(job_id), waited)
