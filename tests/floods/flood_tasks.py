"""Jobs for the floods, written into a service's folder as the module `flooding`."""

from __future__ import annotations

import time

from celery_jobs.tasks import current_job, job


@job
def sized(characters: int) -> str:
    """A result of so many bytes, as JSON."""
    return "x" * (characters - 2)


@job
def broken() -> None:
    """An error whose traceback is longer than what is kept of one."""
    raise ValueError("y" * 100_000)


@job
def telling(seconds: float) -> int:
    """Says how far it is, in a tight loop; how often it did."""
    told, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        told += 1
        current_job.progress(told, None, "on and on")
    return told
