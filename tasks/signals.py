"""Wiring only: which Celery signal calls what."""

from __future__ import annotations

import logging
import signal
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import bootsteps, signals

from celery_jobs.records import workers
from celery_jobs.records.errors import DatabaseUnavailable, SettingsError
from celery_jobs.records.ids import job_id_of
from celery_jobs.records.runs import undispatch
from celery_jobs.records.settings import load_settings
from celery_jobs.tasks import exporter, metrics, process
from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.agent import Agent
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.consumer import Connected
from celery_jobs.tasks.control import LOOK_SIGNAL
from celery_jobs.tasks.events import EventBatches
from celery_jobs.tasks.failures import error_line
from celery_jobs.tasks.growth import grow_pool
from celery_jobs.tasks.job import JobTask

_log = logging.getLogger("celery_jobs.signals")


class JobsStep(bootsteps.StartStopStep):
    """Starts the agent between the pool and the consumer."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **_: Any) -> None:
        # the default action of this signal would end a child that has not installed its handler yet
        if _in_main_thread():
            signal.signal(LOOK_SIGNAL, lambda *_: None)
        try:
            worker.celery_jobs_agent = self.agent = Agent(worker, load_settings())
        except (SettingsError, DatabaseUnavailable) as error:
            raise SystemExit(str(error)) from None  # in plain words, as `celery-jobs worker` says it

    def start(self, parent: Any) -> None:
        """The pool is up."""
        self.agent.start()

    def stop(self, parent: Any) -> None:
        """The consumer has stopped; jobs may still run."""
        self.agent.stopping()

    def terminate(self, parent: Any) -> None:
        """Cold shutdown."""
        self.agent.stopping()


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def worker_ended(sender: Any = None, **_: Any) -> None:
    """The pool has ended as well."""
    agent: Agent | None = getattr(sender, "celery_jobs_agent", None)
    if agent is not None:
        agent.stop()


def child_started(**_: Any) -> None:
    """A pool process begins: connections and threads of its own."""
    process.become_child()
    exporter.become_child()
    active_runs.forget()
    signal.signal(LOOK_SIGNAL, lambda *_: active_runs.look_now())


def failed_in_main(sender: Any = None, task_id: str = "", exception: Any = None, **_: Any) -> None:
    """The main process reports what its child no longer can: a hard time limit, or its sudden end."""
    here = process.current()
    if not here.incarnation or here.forks or not isinstance(sender, JobTask):
        return
    job_id = job_id_of(task_id)
    if isinstance(exception, TimeLimitExceeded):
        if here.store.write(workers.close_run, job_id, here.incarnation, error_line(exception)):
            here.hints.changed(job_id)
            metrics.closed(here.store, [job_id])
    elif isinstance(exception, WorkerLostError):
        # where the child ended before its claim, the job waits again; a claimed run is closed by the look at the
        # children, which knows that its process is gone
        undispatch(here.store, job_id)


def consumer_ready(sender: Any = None, **_: Any) -> None:
    """Limits that were raised before this worker started grow its pool too."""
    try:
        grow_pool(sender)
    except Exception as error:
        _log.warning("the pool did not grow to the limits: %s", error)


WIRING = {
    signals.worker_ready: consumer_ready,
    signals.worker_process_init: child_started,
    signals.worker_shutdown: worker_ended,
    signals.task_failure: failed_in_main,
}


def connect() -> None:
    """Wire the signals and the worker's steps, once per process."""
    for wired, receiver in WIRING.items():
        wired.connect(receiver, weak=False, dispatch_uid=f"celery_jobs.{receiver.__name__}")
    app.steps["worker"].add(JobsStep)
    app.steps["consumer"].update((EventBatches, Connected))
