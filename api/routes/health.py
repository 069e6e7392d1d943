"""Health and probes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from celery_jobs.api.deps import HealthDep, HubDep, PollInterval
from celery_jobs.api.schemas.answers import HEALTH_STREAM, UNHEALTHY
from celery_jobs.api.schemas.health import HealthView, ProbeView, State
from celery_jobs.api.schemas.problem import problems
from celery_jobs.api.stream.health import HealthFrames
from celery_jobs.api.stream.response import EventStream
from celery_jobs.records.errors import DatabaseUnavailable, ShuttingDown

router = APIRouter()


@router.get("/health", response_model=HealthView, responses=UNHEALTHY)
async def get_health(watch: HealthDep) -> Response:
    """The state of the service and of what it needs; degraded still answers 200."""
    view = await watch.look()
    unhealthy = view.status is State.unhealthy
    return Response(
        view.model_dump_json(),
        status_code=503 if unhealthy else 200,
        headers={"Retry-After": "2"} if unhealthy else None,
        media_type="application/json",
    )


@router.get("/health/$stream", response_class=Response, responses=HEALTH_STREAM | problems(422))
async def stream_health(watch: HealthDep, hub: HubDep, poll_interval: PollInterval = 1.0) -> Response:
    """The health at once and after each interval."""
    if hub.closing.is_set():
        raise ShuttingDown
    return EventStream(HealthFrames(watch, poll_interval, hub.closing))


@router.get("/livez")
async def get_livez() -> ProbeView:
    """The process answers; nothing else is looked at."""
    return ProbeView(status="alive")


@router.get("/readyz", responses=problems())
async def get_readyz(request: Request, hub: HubDep) -> ProbeView:
    """The database can be reached and the service is not stopping."""
    if hub.closing.is_set():
        raise ShuttingDown
    service = getattr(request.app.state, "service", None)  # a service without jobs has none
    if service is not None and not await service.ready():
        raise DatabaseUnavailable
    return ProbeView(status="ready")
