"""Celery: the app, `@job`, what runs in a worker, publishing, cancelling, limits, sweeping."""

from typing import TYPE_CHECKING, Any

from celery_jobs.tasks.celery import app
from celery_jobs.tasks.context import JobCanceled, current_job
from celery_jobs.tasks.job import JobTask, job

if TYPE_CHECKING:
    from celery_jobs.tasks.sync import SyncScheduler

__all__ = ["JobCanceled", "JobTask", "SyncScheduler", "app", "current_job", "job"]


def __getattr__(name: str) -> Any:
    if name == "SyncScheduler":  # loaded when it is used: it needs all that the package has
        from celery_jobs.tasks.sync import SyncScheduler

        return SyncScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
