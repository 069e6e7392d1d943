"""The second API within the life of this service: notifications from other processes, and its sweeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from fastapi import FastAPI

from celery_jobs.api.joblib import celery_tasks
from celery_jobs.api.joblib.access import OwnRecords, Records
from celery_jobs.api.joblib.runtime import Runtime
from celery_jobs.api.joblib.sweeper import keep_sweeping
from celery_jobs.api.stream.hub import Hub
from celery_jobs.records.errors import SettingsError
from celery_jobs.records.remote.settings import JobLibSettings
from celery_jobs.tasks.service import JobService


@contextlib.asynccontextmanager
async def run(app: FastAPI, scheduler: JobService, hub: Hub, settings: JobLibSettings) -> AsyncGenerator[None]:
    """Remote workers are waited for and swept; SettingsError for a Celery task whose category is none."""
    try:
        celery_tasks.demand_valid(scheduler, settings.allowed_categories)
    except SettingsError as error:
        app.state.startup_failure = error
        raise
    runtime = app.state.joblib = Runtime(settings)
    scheduler.on_hint(runtime.hinted)
    hub.on_close(runtime.close)

    @contextlib.asynccontextmanager
    async def records() -> AsyncGenerator[Records]:
        yield OwnRecords(scheduler)

    sweeping = keep_sweeping(runtime, records, settings.sweeper_interval_seconds)
    sweeper = asyncio.create_task(sweeping, name="sweep of remote workers")
    try:
        yield
    finally:
        runtime.close()
        sweeper.cancel()
        await asyncio.wait({sweeper})
