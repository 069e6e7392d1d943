"""Jobs: list, look, follow, cancel, retry, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from celery_jobs.api.deps import (
    AllJobsDep,
    HubDep,
    JobIdDep,
    LastEventId,
    MayCancel,
    MayRead,
    PollInterval,
    RowsDep,
    SchedulerDep,
)
from celery_jobs.api.paging import next_link, place
from celery_jobs.api.prefer import PreferDep
from celery_jobs.api.query import EachOnce
from celery_jobs.api.results import JSON, record_response, result_response
from celery_jobs.api.schemas.answers import JOB_STREAM, JOBS_STREAM, PAGED, SUBMITTED, WAITED
from celery_jobs.api.schemas.jobs import Accepted, FollowQuery, JobList, ListQuery, ResultView
from celery_jobs.api.schemas.own_records import list_schema
from celery_jobs.api.schemas.problem import problems
from celery_jobs.api.stream.follower import open_all_jobs_stream
from celery_jobs.api.stream.response import open_job_stream
from celery_jobs.api.stream.wait import WaitedDep, wait_for_end
from celery_jobs.api.submission import SubmissionDep, documented
from celery_jobs.records.errors import JobFinished
from celery_jobs.records.record import NOT_LISTED, JobRecord
from celery_jobs.records.states import CancelOutcome

router = APIRouter()


@router.get("", response_model=JobList, responses=PAGED | problems(422), dependencies=[MayRead, EachOnce])
async def list_jobs(request: Request, scheduler: SchedulerDep, query: Annotated[ListQuery, Query()]) -> Response:
    """The jobs that fit, newest first, without results and tracebacks: a page with `limit`, otherwise all of them."""
    chosen, below = query.chosen(), place(query.cursor, scheduler.places)
    if query.limit is not None:
        records, following = await scheduler.page(chosen, query.limit, below)
        return Response(b"[%s]" % _listed(records), headers=next_link(request, following), media_type=JSON)
    batches = scheduler.stream_records(chosen, below)
    first = await anext(batches, ())  # an outage shows before the answer begins
    return StreamingResponse(_array(first, batches), media_type=JSON)


@router.get("/$schema", dependencies=[MayRead])
async def get_jobs_schema(scheduler: SchedulerDep) -> dict[str, Any]:
    """The JSON schema of the list."""
    return list_schema(scheduler.hooks.record_class)


@router.get(
    "/$stream", response_class=Response, responses=JOBS_STREAM | problems(422), dependencies=[MayRead, EachOnce]
)
async def stream_jobs(
    all_jobs: AllJobsDep, query: Annotated[FollowQuery, Query()], last_event_id: LastEventId = None
) -> Response:
    """Follow all jobs that fit: each change from now on, or since `Last-Event-ID`."""
    return await open_all_jobs_stream(all_jobs, query.chosen(), query.poll_interval, last_event_id)


@router.get("/{job_id}", response_model=JobRecord, responses=WAITED | problems(400, 404), dependencies=[MayRead])
async def get_job(request: Request, job_id: JobIdDep, scheduler: SchedulerDep, prefer: PreferDep) -> Response:
    """The record of a job; with `Prefer: wait=N` once the job has ended, or as it is after N seconds."""
    if prefer.wait_seconds is None:
        return record_response(await scheduler.record(job_id))
    record = await wait_for_end(request, job_id, prefer.wait_seconds)
    return record_response(record, headers=prefer.applied(waited=True))


@router.delete("/{job_id}", status_code=204, responses=problems(400, 404), dependencies=[MayCancel])
async def delete_job(job_id: JobIdDep, scheduler: SchedulerDep) -> Response:
    """Cancel a job and remove its record at once."""
    await scheduler.delete_job(job_id)
    return Response(status_code=204)


@router.get(
    "/{job_id}/$result", response_model=ResultView, responses=WAITED | problems(400, 404), dependencies=[MayRead]
)
async def get_job_result(job_id: JobIdDep, scheduler: SchedulerDep, waited: WaitedDep) -> Response:
    """What came of a job."""
    return result_response(await scheduler.result(job_id), waited)


@router.get(
    "/{job_id}/$stream", response_class=Response, responses=JOB_STREAM | problems(400, 404, 422), dependencies=[MayRead]
)
async def stream_job(
    job_id: JobIdDep,
    rows: RowsDep,
    hub: HubDep,
    poll_interval: PollInterval = 0.5,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a job: its state now, then each change until its end."""
    return await open_job_stream(hub, rows, job_id, poll_interval, last_event_id)


@router.post(
    "/{job_id}/$cancel",
    status_code=202,
    response_model=JobRecord,
    responses=problems(400, 404, 409, 422, 501),
    dependencies=[MayCancel],
)
async def cancel_job(
    job_id: JobIdDep,
    scheduler: SchedulerDep,
    force: Annotated[bool, Query(description="End the process that runs it, after the grace time.")] = False,
) -> Response:
    """Ask for cancellation; a running coroutine stops at its next await. Repeating it is fine."""
    outcome, record = await scheduler.cancel_job(job_id, force=force)
    if outcome is CancelOutcome.too_late:
        raise JobFinished(job_id, record.status)
    return record_response(record, 202)


@router.post(
    "/{job_id}/$retry",
    status_code=202,
    response_model=Accepted,
    responses=SUBMITTED | problems(400, 404, 409, 422, 501),
    openapi_extra=documented(None),
)
async def retry_job(job_id: JobIdDep, submission: SubmissionDep) -> Response:
    """Submit a job that has ended once more, as a new job; options that are given win over those that it had."""
    return await submission.retry(job_id)


async def _array(first: Sequence[JobRecord], batches: AsyncIterator[Sequence[JobRecord]]) -> AsyncIterator[bytes]:
    """One JSON array, a batch at a time; closing early closes the reading."""
    yield b"[" + _listed(first)
    separator = b"," if first else b""
    async for batch in batches:
        if batch:
            yield separator + _listed(batch)
            separator = b","
    yield b"]"


def _listed(records: Sequence[JobRecord]) -> bytes:
    return b",".join(record.model_dump_json(exclude=NOT_LISTED).encode() for record in records)
