"""`celery-jobs worker`: Celery's own worker with our queues, pool and node name."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Literal
from uuid import uuid4

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store

PoolName = Literal["prefork", "threads"]


def run_worker(
    settings: Settings,
    concurrency: int | None = None,
    pool: PoolName = "prefork",
    queues: Sequence[str] | None = None,
    name: str | None = None,
) -> int:
    """Run a worker until it is told to stop; its exit code. SettingsError when it cannot start."""
    if settings.embedded:
        raise SettingsError(
            "A worker needs a broker: set CELERY_BROKER_URL (redis://… or amqp://…), or run `celery-jobs up`"
        )
    from celery_jobs.records.migrate import check
    from celery_jobs.tasks.celery import app, import_tasks

    store = Store(settings.database_url)
    check(store)
    store.close()
    import_tasks(settings)
    arguments = ["worker", "--events", "--loglevel", os.environ.get("LOG_LEVEL", "INFO")]
    # two workers of one name would be one worker to Celery
    arguments += ["--hostname", name or f"jobs-{uuid4().hex[:8]}@{platform.node()}"]
    arguments += ["--pool", pool]
    arguments += ["--queues", ",".join(queues or served_queues(settings))]
    arguments += ["--without-gossip", "--without-mingle"]
    slots = concurrency or settings.concurrency
    if slots is not None:
        arguments += ["--concurrency", str(slots)]
    try:
        app.worker_main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def served_queues(settings: Settings) -> list[str]:
    """The default queue and every queue that a loaded task names."""
    from celery_jobs.tasks.job import registered

    return sorted({settings.default_queue} | {task.queue for task in registered().values() if task.queue})
