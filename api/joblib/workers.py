"""Workers: an extra id, a sign of life, the end; and the sweep."""

from __future__ import annotations

from uuid import uuid4

from fastapi import APIRouter
from starlette.responses import Response

from celery_jobs.api.joblib import sweeper
from celery_jobs.api.joblib.declared import Limit, Offset, WorkerId, problems
from celery_jobs.api.joblib.dependencies import CallDep, VisitDep
from celery_jobs.api.joblib.route import JoblibRoute, PlainRoute
from celery_jobs.api.joblib.runtime import worker_key
from celery_jobs.api.joblib.views import BeatView, Page, Swept, WorkerSummary
from celery_jobs.api.results import JSON
from celery_jobs.records.remote import leaving, workers

router = APIRouter(route_class=JoblibRoute)
plain = APIRouter(route_class=PlainRoute)


@plain.post("/workers", status_code=201, response_model=BeatView, responses=problems())
async def create_worker(call: CallDep) -> Response:
    """A worker id of its own, for an identity that runs several processes."""
    beat = await call.records.write(workers.create, call.who(), str(uuid4()), call.lease_seconds)
    headers = {"Location": f"{call.request.scope['path']}/{beat.id}"}
    return Response(BeatView.of(beat).model_dump_json(), 201, headers, JSON)


@router.get("/workers", responses=problems(422))
async def list_workers(call: CallDep, limit: Limit = 100, offset: Offset = 0) -> Page[WorkerSummary]:
    """All remote workers."""
    found, total = await call.records.read(workers.page, limit, offset)
    return Page(items=[WorkerSummary.of(each) for each in found], total=total, limit=limit, offset=offset)


@plain.patch("/workers/{worker_id}", response_model=BeatView, responses=problems(404))
async def beat_worker(worker_id: WorkerId, call: CallDep) -> Response:
    """A sign of life, answered with the tasks that were cancelled; call it while a task takes long."""
    beat = await call.records.write(workers.beat, call.who(worker_id), call.lease_seconds)
    return Response(BeatView.of(beat).model_dump_json(), media_type=JSON)


@plain.delete("/workers/{worker_id}", status_code=204, responses=problems(404))
async def delete_worker(worker_id: WorkerId, call: CallDep) -> Response:
    """Take a worker away: what it claimed goes back, what it runs fails, jobs that only it served may go."""
    gone = await call.records.write(leaving.remove, call.who(worker_id), call.lease_seconds)
    sweeper.tell(call.records, gone)
    call.runtime.vacancies.call(worker_key(worker_id))
    return Response(status_code=204)


@router.post("/sweep", responses=problems())
async def sweep_workers(visit: VisitDep) -> Swept:
    """Look for silent workers now, as the timer does; open to all, and done at most once a second."""
    return Swept(swept=await sweeper.sweep_when_due(visit.runtime, visit.records))
