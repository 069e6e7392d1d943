"""The default service: jobs, tasks, queues, the example task and health."""

from __future__ import annotations

from fastapi import FastAPI

from celery_jobs.api.builder import BaseServiceBuilder, ServiceInfo
from celery_jobs.records.settings import Settings, load_settings


def create_app(settings: Settings | None = None) -> FastAPI:
    """The app that `celery-jobs` serves; settings come from the environment unless given."""
    settings = settings or load_settings()
    builder = BaseServiceBuilder(info=ServiceInfo(id="celery-jobs", display_name="Jobs"), settings=settings)
    return builder.with_jobs().with_health().build()
