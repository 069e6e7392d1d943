"""Metrics, for Prometheus."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from celery_jobs.api import monitoring
from celery_jobs.api.deps import MayRead

router = APIRouter()
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "In the text format of Prometheus, or in that of OpenMetrics.",
        "content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")},
    }
}


@router.get("/metrics", response_class=Response, responses=_TEXT, dependencies=[MayRead])
async def get_metrics(request: Request, accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
    """Jobs, workers, streams, and how long jobs waited, ran and took to cancel; OpenMetrics where the client asks."""
    text, media_type = await monitoring.scrape(request.app, accept)
    return Response(text, media_type=media_type)
