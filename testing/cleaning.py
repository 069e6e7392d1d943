"""Between two tests: nothing of the one is left that the next could see."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Collection
from contextlib import suppress

from celery.worker import state as worker_state

from celery_jobs.records import emptying, reads
from celery_jobs.records.errors import JobNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.store import Store
from celery_jobs.tasks import execute, process
from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.job import registered
from celery_jobs.tasks.scheduler import CeleryScheduler
from celery_jobs.testing.loop import LoopThread

PATIENCE_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 0.002


def clean(scheduler: CeleryScheduler, loop: LoopThread, known: Collection[str]) -> list[str]:
    """Cancel and remove every job, and reset the queues; what does not end in time is described, and all is left.

    `known`: the names of the tasks that there were before the test.
    """
    store = process.current().store
    app.control.purge()  # what was sent by `.delay()` and has no record yet
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        for job_id in store.read(emptying.unfinished):
            with suppress(JobNotFound):
                loop.run(scheduler.delete(job_id))
        running = active_runs.running()
        if not running and not worker_state.reserved_requests:
            break
        if time.monotonic() > deadline:
            # or messages that the worker has taken and does not settle
            return [_described(store, run.job_id) for run in running] or [
                f"  {request!r}" for request in worker_state.reserved_requests
            ]
        time.sleep(_LOOK_EVERY_SECONDS)
    store.write(emptying.empty)
    _forget_local_tasks(known)
    return []


def _described(store: Store, job_id: JobId) -> str:
    row = store.read(reads.stream_rows, [job_id]).get(job_id)
    task = row.record.task if row is not None else "a task"
    return f"  {task} ({job_id}) still runs after {PATIENCE_SECONDS:g} s{_place(job_id)}"


def _place(job_id: JobId) -> str:
    """Where its thread is now, as far as that can be seen."""
    for frame in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage]  (documented)
        for outer, _ in traceback.walk_stack(frame):
            run = outer.f_locals.get("run") if outer.f_code is execute.execute.__code__ else None
            if run is not None and run.job_id == job_id:
                where = traceback.extract_stack(frame)[-1]
                return f", in {where.name} ({where.filename}:{where.lineno})"
    return ""


def _forget_local_tasks(known: Collection[str]) -> None:
    """A task that was declared inside of a test's function: Celery would give it to the next that uses its name."""
    for name, task in registered().items():
        if name not in known and "<locals>" in task.run.__qualname__:
            app.tasks.unregister(name)
