"""The control command by which a cancel reaches the process that runs the job; a hint that may be lost."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import control_command

from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.celery import app

LOOK = "celery_jobs_look"
LOOK_SIGNAL = signal.SIGUSR2  # SIGUSR1 is billiard's soft time limit


@control_command(name=LOOK, args=[("ids", list)], visible=False)
def look(state: Any, ids: list[str], **_: Any) -> dict[str, int]:
    """Look at the records of these jobs now: somebody asked to cancel them."""
    active_runs.look_now()  # pools whose jobs run in this process
    told = 0
    children = _children(state.consumer.pool)
    for task_id in ids:
        request = worker_state.requests.get(task_id)
        pid = getattr(request, "worker_pid", None)
        if pid in children:
            os.kill(pid, LOOK_SIGNAL)
            told += 1
    return {"told": told}


def _children(pool: Any) -> set[int]:
    """The processes of a prefork pool; empty for pools of threads."""
    processes = getattr(getattr(pool, "_pool", None), "_pool", None) or ()
    return {process.pid for process in processes if hasattr(process, "pid") and process.pid != os.getpid()}


def ask_to_look(ids: list[str], worker: str | None) -> None:
    """Send the hint to one worker, or to all where nobody is known to run the jobs; raises when the broker is away."""
    app.control.broadcast(LOOK, arguments={"ids": ids}, destination=[worker] if worker else None)
