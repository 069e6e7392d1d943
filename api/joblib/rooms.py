"""Rooms: registering jobs, listing what they hold, submitting tasks."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from celery_jobs.api.body import json_body
from celery_jobs.api.joblib import celery_tasks, submitting
from celery_jobs.api.joblib.declared import KEY, JobName, PageDep, RoomId, TasksDep, body, problems
from celery_jobs.api.joblib.dependencies import Call, CallDep
from celery_jobs.api.joblib.payload import check_schema
from celery_jobs.api.joblib.route import JoblibRoute, PlainRoute
from celery_jobs.api.joblib.runtime import worker_key
from celery_jobs.api.joblib.views import (
    Page,
    Registration,
    RemoteJobView,
    RemoteTaskView,
    Submission,
    WorkerSummary,
    page_json,
    task_json,
)
from celery_jobs.api.payloads.check import SchemaUnusable
from celery_jobs.api.problems import fault
from celery_jobs.api.results import JSON
from celery_jobs.records.errors import InvalidCategory, NotAllowed, RemoteJobNotFound, SchemaConflict
from celery_jobs.records.remote import names, registering, tasks, workers
from celery_jobs.records.remote.names import GLOBAL, FullName
from celery_jobs.records.remote.registering import Registered

router = APIRouter(route_class=JoblibRoute)
plain = APIRouter(route_class=PlainRoute)
_registration = json_body(Registration)


@plain.put(
    "/rooms/{room_id}/jobs",
    response_model=RemoteJobView,
    responses={201: {"model": RemoteJobView, "description": "It is new."}} | problems(400, 404, 409, 413, 422),
    openapi_extra=body(Registration),
)
async def register_job(room_id: RoomId, call: CallDep) -> Response:
    """Serve a job in a room from now on, or with `@global` in all of them; doing so again is fine."""
    asked = await _registration(call.request)
    job = _named(call, names.room(room_id), asked)
    if celery_tasks.find(call.records, job) is not None:
        raise SchemaConflict(str(job), "is a Celery task")
    who = call.who(asked.worker_id)
    schema = await _usable(call, asked)
    found, created = await call.records.write(registering.register, who, job, schema, call.lease_seconds)
    call.records.changed([worker_key(who.worker)])  # if it waits, there may be something more for it
    return Response(RemoteJobView.of(found).model_dump_json(by_alias=True), 201 if created else 200, media_type=JSON)


def _named(call: Call, room_id: str, asked: Registration) -> FullName:
    if room_id == GLOBAL and not call.admin:
        raise NotAllowed(call.identity, "register a job for all rooms: that takes an admin")
    allowed = call.runtime.settings.allowed_categories
    if asked.category not in allowed:
        raise InvalidCategory(asked.category, allowed)
    if not names.is_name(asked.name):
        raise RequestValidationError([fault(("body", "name"), "A name is not empty and holds neither ':' nor '/'")])
    return FullName(room_id, asked.category, asked.name)


async def _usable(call: Call, asked: Registration) -> str:
    try:
        return await check_schema(call.runtime.checker, asked.json_schema)
    except SchemaUnusable as error:
        raise RequestValidationError([fault(("body", "schema"), str(error))]) from None


@router.get("/rooms/{room_id}/jobs", response_model=Page[RemoteJobView], responses=problems(400, 422))
async def list_room_jobs(room_id: RoomId, call: CallDep, page: PageDep) -> Response:
    """The jobs that may be submitted in a room: its own and the global ones."""
    rooms = sorted({names.room(room_id), GLOBAL})
    by_celery = await celery_tasks.all_of(call.records)
    first = by_celery[page.offset : page.offset + page.limit]
    rest = max(0, page.offset - len(by_celery))
    # one is read even when the page is full: the total counts them all
    registered, total = await call.records.read(registering.page, rooms, max(page.limit - len(first), 1), rest)
    shown = [*first, *registered][: page.limit]
    items = [_json(each) for each in shown]
    return Response(page_json(items, total + len(by_celery), page.limit, page.offset), media_type=JSON)


@router.get("/rooms/{room_id}/jobs/{job_name}", response_model=RemoteJobView, responses=problems(400, 404))
async def get_room_job(room_id: RoomId, job_name: JobName, call: CallDep) -> Response:
    """One job, its schema and its workers."""
    job = _visible(room_id, job_name)
    if celery_tasks.find(call.records, job) is not None:
        found = next(each for each in await celery_tasks.all_of(call.records) if each.full_name == job)
    else:
        found = await call.records.read(registering.find, job)
    return Response(_json(found), media_type=JSON)


@plain.post(
    "/rooms/{room_id}/tasks/{job_name}",
    status_code=202,
    response_model=RemoteTaskView,
    responses={
        200: {"model": RemoteTaskView, "description": "It ended within the time that was preferred."},
        202: {"headers": {"Location": {"description": "Where the task is.", "schema": {"type": "string"}}}},
    }
    | problems(400, 404, 413, 422),
    openapi_extra=body(Submission, required=False) | KEY,
)
async def submit_room_task(room_id: RoomId, job_name: JobName, call: CallDep) -> Response:
    """Submit a task of a job; the payload is checked against the job's schema."""
    return await submitting.submit(call, names.room(room_id), _visible(room_id, job_name))


@router.get("/rooms/{room_id}/tasks", response_model=Page[RemoteTaskView], responses=problems(400, 422))
async def list_room_tasks(room_id: RoomId, call: CallDep, page: TasksDep) -> Response:
    """The tasks that were submitted in a room, newest first."""
    found, total = await call.records.read(tasks.page, names.room(room_id), page.limit, page.offset, page.status)
    return Response(page_json([task_json(each) for each in found], total, page.limit, page.offset), media_type=JSON)


@router.get("/rooms/{room_id}/workers", responses=problems(400, 422))
async def list_room_workers(room_id: RoomId, call: CallDep, page: PageDep) -> Page[WorkerSummary]:
    """The remote workers that serve jobs of a room, its own and the global ones."""
    rooms = sorted({names.room(room_id), GLOBAL})
    found, total = await call.records.read(workers.page, page.limit, page.offset, rooms)
    return Page(items=[WorkerSummary.of(each) for each in found], total=total, limit=page.limit, offset=page.offset)


def _visible(room_id: str, job_name: str) -> FullName:
    job = FullName.parse(job_name)
    if not job.visible_in(names.room(room_id)):
        raise RemoteJobNotFound(job_name)
    return job


def _json(job: Registered) -> bytes:
    return RemoteJobView.of(job).model_dump_json(by_alias=True).encode()
