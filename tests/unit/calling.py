"""Jobs of Python callers, and waiting for what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from ulid import ULID

from celery_jobs.api import CeleryScheduler, JobStatus
from celery_jobs.tasks import job


class Point(BaseModel):
    x: int
    y: int = 0


@job(priority=7)
def shift(point: Point, by: int = 1) -> Point:
    return Point(x=point.x + by, y=point.y)


@job
async def nap(seconds: float = 60) -> None:
    await asyncio.sleep(seconds)


async def outcome(scheduler: CeleryScheduler, target: Any, *args: Any, **kwargs: Any) -> Any:
    job_id = await scheduler.add_job(target, *args, **kwargs)
    assert isinstance(job_id, ULID)
    await scheduler.wait(job_id, timeout=10)
    return await scheduler.get_result(job_id)


async def until(scheduler: CeleryScheduler, job_id: ULID, status: JobStatus) -> None:
    async def reached() -> bool:
        return await scheduler.get_status(job_id) is status

    await eventually(reached)


async def eventually(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await fact():  # noqa: ASYNC110 — another thread makes it true
            await asyncio.sleep(0.01)
