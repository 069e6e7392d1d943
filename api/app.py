"""The default service: jobs, tasks, queues, the example task, health and metrics."""

from __future__ import annotations

import gc

from fastapi import FastAPI

from celery_jobs.api.builder import BaseServiceBuilder, ServiceInfo
from celery_jobs.records.settings import Settings, load_settings
from celery_jobs.tasks.configured import scheduler_class


def create_app(settings: Settings | None = None) -> FastAPI:
    """The app that `celery-jobs` serves; settings come from the environment unless given."""
    settings = settings or load_settings()
    scheduler_class(settings)  # a wrong one stops the start before anything else does
    builder = BaseServiceBuilder(info=ServiceInfo(id="celery-jobs", display_name="Jobs"), settings=settings)
    return builder.with_jobs().with_health().with_monitoring().on_startup(_spare_pauses).build()


async def _spare_pauses(_app: FastAPI) -> None:
    """Leave what lives as long as the process out of garbage collections: a full one paused all calls for 100 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 50)  # a thousand streams that open are no garbage either
