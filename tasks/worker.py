"""`celery-jobs worker`: Celery's own worker with our queues, pool and node name."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from celery.worker import state as worker_state

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.tasks.lifeline import stop_with_parent

PoolName = Literal["prefork", "threads"]

MOST_THREADS = 1_000
MOST_PROCESSES_PER_CORE = 4


def run_worker(
    settings: Settings,
    concurrency: int | None = None,
    pool: PoolName = "prefork",
    queues: Sequence[str] | None = None,
    name: str | None = None,
    metrics_folder: Path | None = None,
) -> int:
    """Run a worker until it is told to stop; its exit code. SettingsError when it cannot start.

    `metrics_folder`: where it counts for another process that serves the numbers, unless it has a port of its own.
    """
    if settings.embedded:
        raise SettingsError(
            "A worker needs a broker: set CELERY_BROKER_URL (redis://… or amqp://…), or run `celery-jobs up`"
        )
    from celery_jobs.tasks import exporter

    stop_with_parent()
    slots = concurrency or settings.concurrency
    if slots is None and settings.max_pool is not None:
        slots = min(settings.max_pool, os.cpu_count() or 1)
    with exporter.counting(settings, metrics_folder):
        return _run(settings, slots, pool, queues, name)


def _run(settings: Settings, slots: int | None, pool: PoolName, queues: Sequence[str] | None, name: str | None) -> int:
    from celery_jobs.records.migrate import check
    from celery_jobs.tasks.celery import app, import_tasks

    store = Store(settings.database_url)
    check(store)
    store.close()
    import_tasks(settings)
    # as `celery worker` does, without what its other commands load at each start (0.3 s)
    worker = app.Worker(
        hostname=name or f"jobs-{uuid4().hex[:8]}@{platform.node()}",  # two of one name would be one to Celery
        pool_cls=pool,
        concurrency=slots,
        queues=list(queues or served_queues(settings)),
        loglevel=os.environ.get("LOG_LEVEL") or "INFO",
        task_events=True,
        without_gossip=True,
        without_mingle=True,
    )
    try:
        worker.start()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(f"celery-jobs: {end.code}", file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return _exit_code(worker)


def _exit_code(worker: Any) -> int:
    """0 when it ended as it was asked to, whatever signal asked; Celery keeps the code of a crash to itself."""
    asked = worker_state.should_stop is not None and not worker_state.should_terminate
    return 0 if asked else int(worker.exitcode or 0)


def most_slots(settings: Settings, pool: PoolName) -> int:
    """How far a pool of this kind grows to the limits of its queues (contract, section 5)."""
    if settings.max_pool is not None:
        return settings.max_pool
    return MOST_THREADS if pool == "threads" else MOST_PROCESSES_PER_CORE * (os.cpu_count() or 1)


def served_queues(settings: Settings) -> list[str]:
    """The default queue and every queue that a loaded task names."""
    from celery_jobs.tasks.job import registered

    return sorted({settings.default_queue} | {task.queue for task in registered().values() if task.queue})
