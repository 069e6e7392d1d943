"""The tasks as jobs of the service (JOBS_IMPORTS)."""

from __future__ import annotations

import asyncio

from benchmarks.stand.marks import mark
from benchmarks.subjects import work
from celery_jobs.tasks import job


@job(name="noop")
def noop() -> None:
    """Nothing."""


@job(name="mark")
def marked(n: int) -> None:
    """Say that it runs."""
    mark(n)


@job(name="nap")
def nap(seconds: float) -> float:
    """Sleep, and how long that really took."""
    return work.nap(seconds)


@job(name="sleeper")
async def sleeper(n: int) -> None:
    """A coroutine that waits to be canceled."""
    mark(n)
    await asyncio.sleep(60)
