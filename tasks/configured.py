"""The scheduler that JOBS_SCHEDULER names, `module:Class`: what it is in the API is what its hooks are in a worker."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.settings import Settings

if TYPE_CHECKING:
    from celery_jobs.tasks.hooks import Hooks
    from celery_jobs.tasks.surface import Scheduler


def scheduler_class(settings: Settings) -> type[Scheduler] | None:
    """The class; None where the setting is not used, SettingsError where it names none."""
    if settings.scheduler is None:
        return None
    from celery_jobs.tasks.surface import Scheduler

    module, _, name = settings.scheduler.partition(":")
    try:
        folder = str(Path.cwd())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise SettingsError(
            f"JOBS_SCHEDULER names {settings.scheduler!r}, which cannot be imported: {error!r}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Scheduler)):
        raise SettingsError(f"JOBS_SCHEDULER names {settings.scheduler!r}, which is no subclass of Scheduler")
    return found


def is_plugged(settings: Settings) -> bool:
    """Whether JOBS_SCHEDULER names an implementation that is not ours: it needs no broker, database or worker."""
    found = scheduler_class(settings)
    if found is None:
        return False
    from celery_jobs.tasks.service import JobService

    return not issubclass(found, JobService)


def make_scheduler(settings: Settings, max_concurrency: int | None, shutdown_timeout: float) -> Scheduler:
    """The configured scheduler, ours where none is; SettingsError."""
    from celery_jobs.tasks.scheduler import CeleryScheduler

    found = scheduler_class(settings) or CeleryScheduler
    if found is CeleryScheduler:
        return found(max_concurrency, settings=settings, shutdown_timeout=shutdown_timeout)
    try:
        return found(max_concurrency) if issubclass(found, CeleryScheduler) else found()
    except Exception as error:
        takes = "with max_concurrency alone" if issubclass(found, CeleryScheduler) else "without arguments"
        raise SettingsError(
            f"JOBS_SCHEDULER names {settings.scheduler!r}, which cannot be made {takes}: {error!r}"
        ) from error


def hooks(settings: Settings) -> Hooks:
    """The hooks of the configured scheduler, for a process that runs jobs or submits them; SettingsError."""
    from celery_jobs.tasks.hooks import Hooks, of
    from celery_jobs.tasks.scheduler import CeleryScheduler

    found = scheduler_class(settings)
    if found is None or not issubclass(found, CeleryScheduler):
        return Hooks()
    try:
        return of(found())
    except Exception as error:
        raise SettingsError(
            f"JOBS_SCHEDULER names {settings.scheduler!r}, which a worker cannot make without arguments: {error!r}"
        ) from error
