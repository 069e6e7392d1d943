"""The example task: computes for a while and returns 42."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from celery_jobs.tasks.job import job

Duration = Annotated[float, Field(ge=0.1, le=60, description="Seconds.", examples=[30])]


@job(name="compute")
async def compute(duration: Duration) -> int:
    """Compute for `duration` seconds; the answer is 42."""
    await asyncio.sleep(duration)
    return 42
