"""Submitting a task in a room: checked against its job's schema, recorded, and waited for where that is preferred."""

from __future__ import annotations

from typing import Final

from pydantic_core import to_json
from starlette.responses import Response

from celery_jobs.api.body import json_body
from celery_jobs.api.joblib import celery_tasks
from celery_jobs.api.joblib.dependencies import Call
from celery_jobs.api.joblib.payload import check_payload
from celery_jobs.api.joblib.task_waits import wait_for_end
from celery_jobs.api.joblib.views import Submission, task_json
from celery_jobs.api.prefer import preferences_of
from celery_jobs.api.results import JSON
from celery_jobs.api.submission import RETRY_AFTER_SECONDS, fingerprint, idempotency_key
from celery_jobs.records.errors import (
    DatabaseUnavailable,
    JobsError,
    PayloadInvalid,
    RemoteJobNotFound,
    RemoteTaskNotFound,
)
from celery_jobs.records.ids import JobId, uuid_of
from celery_jobs.records.remote import registering, tasks
from celery_jobs.records.remote.names import FullName
from celery_jobs.records.remote.registering import Registered
from celery_jobs.records.remote.tasks import RemoteTask
from celery_jobs.records.states import ENDED_TASKS
from celery_jobs.records.submit import NewJob, Submitted, earlier
from celery_jobs.tasks.submit import SubmitOptions

_submission: Final = json_body(Submission, optional=True)


async def submit(call: Call, room_id: str, job: FullName) -> Response:
    """Record the task and answer 202 with it; 200 where it ended within the preferred time."""
    asked = await _submission(call.request)
    task, replayed = await _recorded(call, room_id, job, asked)
    prefer = preferences_of(call.request)
    waited = False
    if prefer.wait_seconds is not None:
        task, waited = await _end(call, task, prefer.wait_seconds)
    ended = waited and task.status in ENDED_TASKS
    headers = prefer.applied(accepted=not ended, waited=waited)
    if replayed:
        headers["Idempotent-Replayed"] = "true"
    headers["Location"] = _address(call, task.id)
    if not ended:
        headers["Retry-After"] = RETRY_AFTER_SECONDS
    return Response(task_json(task), 200 if ended else 202, headers, JSON)


async def _recorded(call: Call, room_id: str, job: FullName, asked: Submission) -> tuple[RemoteTask, bool]:
    """The task, and whether an earlier request with the same key had brought it."""
    options = _options(call, asked)
    try:
        new, submitted = await _submit(call, room_id, job, asked, options)
    except (RemoteJobNotFound, PayloadInvalid):
        # a repeat whose job has gone since, or has another schema, is answered with the task that it brought
        key = options.key(0)
        before = None if key is None else await call.records.read(earlier, key)
        if before is None:
            raise
        return await call.records.read(tasks.task, before), True
    try:
        return await call.records.read(tasks.task, submitted.job_id), submitted.replayed
    except (DatabaseUnavailable, RemoteTaskNotFound):
        if submitted.replayed:
            raise
        # it is recorded, so 202 is true whatever became of the look
        return RemoteTask.submitted(new, call.identity), False


async def _submit(
    call: Call, room_id: str, job: FullName, asked: Submission, options: SubmitOptions
) -> tuple[NewJob, Submitted]:
    by_celery = celery_tasks.find(call.records, job)
    if by_celery is not None:
        new = celery_tasks.new_task(call.records, by_celery, job, room_id, to_json(asked.payload))
        return new, await call.records.submit(new, options)
    known = call.runtime.registered
    remembered = known.get(job)
    if remembered is not None:
        try:
            return await _submit_as(call, room_id, remembered, asked, options)
        except (RemoteJobNotFound, PayloadInvalid):
            known.forget(job)
            registered = await call.records.read(registering.schema, job)
            if registered.id == remembered.id:
                known.remember(registered)
                raise
            # it was removed since, and registered with another schema
    else:
        registered = await call.records.read(registering.schema, job)
    known.remember(registered)
    return await _submit_as(call, room_id, registered, asked, options)


async def _submit_as(
    call: Call, room_id: str, registered: Registered, asked: Submission, options: SubmitOptions
) -> tuple[NewJob, Submitted]:
    name = str(registered.full_name)
    payload = await check_payload(call.runtime.checker, name, registered.schema_json, asked.payload)
    new = NewJob(task=name, queue=None, kwargs=payload, room_id=room_id, job_name=name, registration=registered.id)
    return new, await call.records.submit(new, options)


def _options(call: Call, asked: Submission) -> SubmitOptions:
    key = idempotency_key(call.request)
    return SubmitOptions(
        submitted_by=call.identity,
        idempotency_key=key,
        idempotency_scope=f"{call.identity}\n{call.request.scope['path']}" if key else "",
        fingerprint=fingerprint(to_json(asked)) if key else b"",
    )


async def _end(call: Call, task: RemoteTask, seconds: float) -> tuple[RemoteTask, bool]:
    """The task as it is after the wait, and whether it was waited for."""
    try:
        return await wait_for_end(call, task, seconds), True
    except JobsError:
        return task, False  # it is recorded, so 202 is true whatever became of the waiting


def _address(call: Call, task_id: JobId) -> str:
    before, _, _ = call.request.scope["path"].partition("/v1/joblib/")
    root = call.request.scope.get("root_path", "")
    return f"{root}{before.removeprefix(root)}/v1/joblib/tasks/{uuid_of(task_id)}"
