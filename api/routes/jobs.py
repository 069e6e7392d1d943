"""Jobs: list, look, follow, cancel, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

import pydantic_core
from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from celery_jobs.api.deps import HubDep, JobIdDep, LastEventId, MayCancel, MayRead, PollInterval, SchedulerDep
from celery_jobs.api.schemas.jobs import JobList, ListQuery, ResultView
from celery_jobs.api.schemas.problem import problems
from celery_jobs.api.stream.response import EVENT_STREAM, open_job_stream
from celery_jobs.records.errors import JobFinished
from celery_jobs.records.record import JobRecord, JobResult
from celery_jobs.records.states import CancelOutcome

router = APIRouter()

_JSON: Final = "application/json"
_NOT_LISTED: Final = {"error_traceback"}
_STREAM = EVENT_STREAM | {204: {"description": "The job has ended and Last-Event-ID names its last event"}}


@router.get("", response_model=JobList, responses=problems(), dependencies=[MayRead])
async def list_jobs(scheduler: SchedulerDep, query: Annotated[ListQuery, Query()]) -> Response:
    """All jobs that fit, newest first, without results and tracebacks."""
    batches = scheduler.stream_records(query.chosen())
    first = await anext(batches, ())  # an outage shows before the answer begins
    return StreamingResponse(_array(first, batches), media_type=_JSON)


@router.get("/$schema", responses=problems(), dependencies=[MayRead])
async def list_schema() -> dict[str, Any]:
    """The JSON schema of the list."""
    return JobList.model_json_schema()


@router.get("/{job_id}", response_model=JobRecord, responses=problems(400, 404), dependencies=[MayRead])
async def get_job(job_id: JobIdDep, scheduler: SchedulerDep) -> Response:
    """The record of a job."""
    return _record_response(await scheduler.record(job_id))


@router.delete("/{job_id}", status_code=204, responses=problems(400, 404), dependencies=[MayCancel])
async def delete_job(job_id: JobIdDep, scheduler: SchedulerDep) -> Response:
    """Cancel a job and remove its record at once."""
    await scheduler.delete(job_id)
    return Response(status_code=204)


@router.get("/{job_id}/$result", response_model=ResultView, responses=problems(400, 404), dependencies=[MayRead])
async def get_result(job_id: JobIdDep, scheduler: SchedulerDep) -> Response:
    """What came of a job."""
    return result_response(await scheduler.result(job_id))


@router.get(
    "/{job_id}/$stream", response_class=Response, responses=_STREAM | problems(400, 404), dependencies=[MayRead]
)
async def stream_job(
    job_id: JobIdDep,
    scheduler: SchedulerDep,
    hub: HubDep,
    poll_interval: PollInterval = 0.5,
    last_event_id: LastEventId = None,
) -> Response:
    """Follow a job: its state now, then each change until its end."""
    return await open_job_stream(hub, scheduler, job_id, poll_interval, last_event_id)


@router.post(
    "/{job_id}/$cancel",
    status_code=202,
    response_model=JobRecord,
    responses=problems(400, 404, 409),
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
    return _record_response(record, 202)


def result_response(found: JobResult) -> Response:
    """The result's JSON text as it was stored, inside what else is known of the job."""
    record = found.record
    times = {"submitted_at": record.submitted_at, "started_at": record.started_at, "finished_at": record.finished_at}
    head = pydantic_core.to_json({"job_id": str(record.id), "status": record.status, **times})
    result = (found.result_json or "null").encode()
    body = b'%s,"result":%s,"error":%s}' % (head[:-1], result, pydantic_core.to_json(record.error))
    return Response(body, media_type=_JSON)


def _record_response(record: JobRecord, status: int = 200) -> Response:
    return Response(record.model_dump_json(), status, media_type=_JSON)


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
    return b",".join(record.model_dump_json(exclude=_NOT_LISTED).encode() for record in records)
