"""HTTP, and nothing that is not HTTP. Importing this package costs nothing; its names load when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_jobs.api.builder import BaseServiceBuilder, JobOptions, ServiceInfo
    from celery_jobs.api.deps import get_scheduler
    from celery_jobs.api.task_route import submit_route
    from celery_jobs.records.record import JobRecord, Progress
    from celery_jobs.records.settings import ApiKey
    from celery_jobs.records.states import JobStatus
    from celery_jobs.tasks.scheduler import CeleryScheduler
    from celery_jobs.tasks.submit import SubmitOptions
    from celery_jobs.tasks.surface import Scheduler
    from celery_jobs.tasks.sync import SyncScheduler

__all__ = [
    "ApiKey",
    "BaseServiceBuilder",
    "CeleryScheduler",
    "JobOptions",
    "JobRecord",
    "JobStatus",
    "Progress",
    "Scheduler",
    "ServiceInfo",
    "SubmitOptions",
    "SyncScheduler",
    "get_scheduler",
    "submit_route",
]

_HOMES = {
    "ApiKey": "celery_jobs.records.settings",
    "BaseServiceBuilder": "celery_jobs.api.builder",
    "CeleryScheduler": "celery_jobs.tasks.scheduler",
    "JobOptions": "celery_jobs.api.builder",
    "JobRecord": "celery_jobs.records.record",
    "JobStatus": "celery_jobs.records.states",
    "Progress": "celery_jobs.records.record",
    "Scheduler": "celery_jobs.tasks.surface",
    "ServiceInfo": "celery_jobs.api.builder",
    "SubmitOptions": "celery_jobs.tasks.submit",
    "SyncScheduler": "celery_jobs.tasks.sync",
    "get_scheduler": "celery_jobs.api.deps",
    "submit_route": "celery_jobs.api.task_route",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
