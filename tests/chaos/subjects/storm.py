"""The jobs of a storm as this service runs them; written into its folder as the module `storm`."""

from __future__ import annotations

import telling

from celery_jobs.tasks import JobTask, current_job, job


@job
def nap(mark: str, seconds: float) -> str:
    return telling.nap(str(current_job.id), mark, seconds)


@job
async def doze(mark: str, seconds: float) -> str:
    return await telling.doze(str(current_job.id), mark, seconds)


@job
def fail(mark: str, seconds: float) -> str:
    return telling.fail(str(current_job.id), mark, seconds)


@job(retry_on_worker_lost=True, max_attempts=3)
def safe(mark: str, seconds: float) -> str:
    return telling.nap(str(current_job.id), mark, seconds)


@job(bind=True, max_retries=2)
def again(self: JobTask, mark: str, seconds: float) -> str:
    with telling.told(str(current_job.id), mark):
        if self.request.retries == 0:
            raise self.retry(countdown=seconds)
    return mark
