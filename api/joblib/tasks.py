"""Tasks: claim, look, report, cancel."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.responses import Response

from celery_jobs.api.body import json_body
from celery_jobs.api.joblib.claiming import claim
from celery_jobs.api.joblib.declared import PREFER, WAITED, TaskId, body, problems
from celery_jobs.api.joblib.dependencies import Call, CallDep
from celery_jobs.api.joblib.route import PlainRoute
from celery_jobs.api.joblib.task_waits import wait_for_end
from celery_jobs.api.joblib.views import Claim, Claimed, RemoteTaskView, ReportedTask, TaskReport, task_json
from celery_jobs.api.prefer import preferences_of
from celery_jobs.api.problems import fault
from celery_jobs.api.results import JSON
from celery_jobs.records.ids import JobId
from celery_jobs.records.remote import reports, tasks
from celery_jobs.records.remote.reports import Answer, Report
from celery_jobs.records.remote.tasks import parse_task_id
from celery_jobs.records.states import TaskStatus
from celery_jobs.records.text import one_line

plain = APIRouter(route_class=PlainRoute)
_claim: Final = json_body(Claim, optional=True)
_report: Final = json_body(TaskReport, forgiving=True)
_NO_REASON: Final = "failed without a reason"


@plain.post(
    "/tasks/claim",
    response_model=Claimed,
    responses=WAITED | problems(404, 413, 422),
    openapi_extra=body(Claim, required=False) | PREFER,
)
async def claim_task(call: CallDep) -> Response:
    """Take the oldest task that waits for the calling worker, over all the jobs that it serves."""
    asked = await _claim(call.request)
    prefer = preferences_of(call.request)
    task = await claim(call, call.who(asked.worker_id), prefer.wait_seconds)
    content = b'{"task":%s}' % (b"null" if task is None else task_json(task))
    return Response(content, 200, prefer.applied(waited=prefer.wait_seconds is not None), JSON)


@plain.get("/tasks/{task_id}", response_model=RemoteTaskView, responses=WAITED | problems(404), openapi_extra=PREFER)
async def get_task(task_id: TaskId, call: CallDep) -> Response:
    """A task; with `Prefer: wait=N` once it has ended, or as it is after N seconds."""
    prefer = preferences_of(call.request)
    task = await call.records.read(tasks.task, parse_task_id(task_id))
    if prefer.wait_seconds is not None:
        task = await wait_for_end(call, task, prefer.wait_seconds)
    return Response(task_json(task), 200, prefer.applied(waited=prefer.wait_seconds is not None), JSON)


@plain.patch(
    "/tasks/{task_id}",
    response_model=ReportedTask,
    responses=problems(404, 409, 413, 422),
    openapi_extra=body(TaskReport),
)
async def report_task(task_id: TaskId, call: CallDep) -> Response:
    """Say that the task runs, is completed or has failed; or cancel it."""
    said = await _report(call.request)
    job_id = parse_task_id(task_id)
    cancels = said.status is TaskStatus.CANCELLED
    answer = await (_cancel(call, job_id, said) if cancels else _take(call, job_id, said))
    assert answer.task is not None
    return Response(task_json(answer.task, answer.cancelled_task_ids), media_type=JSON)


async def _cancel(call: Call, task_id: JobId, said: TaskReport) -> Answer:
    _demand(said, error=None, result=None)
    who = call.who(said.worker_id)
    answer, canceled = await call.records.write(reports.cancel_task, task_id, who, call.lease_seconds)
    if canceled is not None:
        call.records.canceled(canceled)
    return _accepted(answer)


async def _take(call: Call, task_id: JobId, said: TaskReport) -> Answer:
    call.demand_reporter()
    report = _checked(call, said)
    answer = await call.records.write_one(reports.report, task_id, call.who(said.worker_id), report, call.lease_seconds)
    call.records.changed([] if answer.refusal else [task_id])
    return _accepted(answer)


def _accepted(answer: Answer) -> Answer:
    if answer.refusal is not None:
        raise answer.refusal
    return answer


def _checked(call: Call, said: TaskReport) -> Report:
    if said.status is TaskStatus.FAILED:
        _demand(said, result=None)
        return Report(said.status, error=one_line(said.error or "") or _NO_REASON)
    _demand(said, error=None)
    if said.status is not TaskStatus.COMPLETED:
        _demand(said, result=None)
        return Report(said.status)
    if said.result is None:
        return Report(said.status)
    result = to_json(said.result, inf_nan_mode="null")
    if len(result) > (most := call.most_result_bytes):
        why = f"ResultNotStorable: the result has {len(result)} bytes of JSON, more than JOBS_MAX_RESULT_BYTES ({most})"
        return Report(TaskStatus.FAILED, error=why)
    return Report(said.status, result=result.decode())


def _demand(said: TaskReport, **absent: Any) -> None:
    """`error` belongs to failed and `result` to completed, so that nothing that was said is lost."""
    for name in absent:
        if getattr(said, name) is not None:
            raise RequestValidationError([fault(("body", name), f"does not go with the status {said.status}")])
