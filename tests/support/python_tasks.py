"""Tasks and functions that Python callers submit in the acceptance tests, written into a service's folder as `shop`."""

from __future__ import annotations

import os

from celery_jobs.tasks import SyncScheduler, current_job, job


@job
def double(number: int) -> int:
    return number * 2


@job(queue="outer")
def outer(number: int) -> dict[str, object]:
    """Submits another job from inside of this one, and waits for what it gives."""
    scheduler = SyncScheduler()
    inner = scheduler.add_job(double, number)
    scheduler.wait(inner, timeout=30)
    return {"id": str(current_job.id), "inner": str(inner), "value": scheduler.get_result(inner)}


def plain_function(name: str, times: int = 1) -> dict[str, object]:
    return {"text": name * times, "pid": os.getpid()}
