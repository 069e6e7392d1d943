"""Tasks and functions that Python callers submit in the acceptance tests, written into a service's folder as `shop`."""

from __future__ import annotations

import os

from celery_jobs.api import CeleryScheduler
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


at_import = SyncScheduler() if os.environ.get("CELERY_BROKER_URL") else None


@job(queue="outer")
async def outer_async(number: int) -> object:
    """The same in a coroutine."""
    async with CeleryScheduler() as scheduler:
        inner = await scheduler.add_job(double, number)
        await scheduler.wait(inner, timeout=30)
        return await scheduler.get_result(inner)


@job(queue="outer")
def from_import(times: int) -> int:
    """Uses a scheduler that was made when the module was imported: in the process that forked this one."""
    scheduler = at_import or SyncScheduler()
    for number in range(times):
        assert scheduler.get_record(scheduler.add_job(double, number)).task == "shop.double"
    return times


@job(queue="outer")
async def blocking(number: int) -> None:
    scheduler = SyncScheduler()
    scheduler.wait(scheduler.add_job(double, number), timeout=30)
