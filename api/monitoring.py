"""The metrics of an API process: what a scrape is answered with, and the streams that are open here (section 3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from fastapi import FastAPI

from celery_jobs.api.stream.response import EventStream
from celery_jobs.tasks import metrics
from celery_jobs.tasks.service import JobService

_TELL_SECONDS: Final = 1.0


async def scrape(app: FastAPI, accept: str) -> tuple[bytes, str]:
    """All metrics in the format that the client prefers, and its media type; within about a second, also in trouble."""
    service = getattr(app.state, "service", None)
    if service is None:  # a service without jobs
        return await asyncio.to_thread(metrics.text, accept, ())
    metrics.streams(EventStream.open)
    # another implementation of a scheduler has no SQL to count in
    more = metrics.from_sql(await service.numbers()) if isinstance(service, JobService) else ()
    return await asyncio.to_thread(metrics.text, accept, more)


@contextlib.asynccontextmanager
async def tell_streams(app: FastAPI) -> AsyncGenerator[None]:
    """Where several processes answer for each other, say once a second how many streams are open in this one."""
    telling = asyncio.create_task(_tell(app), name="stream count") if metrics.shared() else None
    try:
        yield
    finally:
        if telling is not None:
            telling.cancel()
            await asyncio.wait({telling})
            metrics.streams(0)


async def _tell(app: FastAPI) -> None:
    while True:
        metrics.streams(EventStream.open)
        await asyncio.sleep(_TELL_SECONDS)
