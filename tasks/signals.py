"""Wiring only: which Celery signal calls what."""

from __future__ import annotations

import signal
import threading
from typing import Any

from billiard.exceptions import WorkerLostError
from celery import bootsteps, signals

from celery_jobs.records.errors import DatabaseUnavailable, SettingsError
from celery_jobs.records.ids import job_id_of
from celery_jobs.records.settings import load_settings
from celery_jobs.tasks import exporter, growth, process
from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.agent import Agent
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.consumer import Connected
from celery_jobs.tasks.control import LOOK_SIGNAL
from celery_jobs.tasks.cutoff import ColdShutdown
from celery_jobs.tasks.events import EventBatches
from celery_jobs.tasks.job import JobTask


class JobsStep(bootsteps.StartStopStep):
    """Starts the agent between the pool and the consumer."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **_: Any) -> None:
        global _agent
        # the default action of this signal would end a child that has not installed its handler yet
        if _in_main_thread():
            signal.signal(LOOK_SIGNAL, lambda *_: None)
        try:
            worker.celery_jobs_agent = self.agent = _agent = Agent(worker, load_settings())
        except (SettingsError, DatabaseUnavailable) as error:
            raise SystemExit(str(error)) from None  # in plain words, as `celery-jobs worker` says it

    def start(self, parent: Any) -> None:
        """The pool is up."""
        self.agent.start()
        if _in_main_thread():
            ColdShutdown(parent, self.agent.cut_off).install()

    def stop(self, parent: Any) -> None:
        """The consumer has stopped; jobs may still run."""
        self.agent.stopping()

    def terminate(self, parent: Any) -> None:
        """Cold shutdown: Celery tells no more of its end."""
        self.agent.cut_off.now()
        self.agent.stop()


_agent: Agent | None = None  # of this process, and in a forked child that of its parent


def _in_main_thread() -> bool:
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


def lost_in_main(sender: Any = None, task_id: str = "", exception: Any = None, **_: Any) -> None:
    """The pool has given a message up with its child; one that was claimed is closed by the look at the children."""
    if _agent is not None and isinstance(sender, JobTask) and isinstance(exception, WorkerLostError):
        _agent.children.lost_message(job_id_of(task_id))


def consumer_ready(sender: Any = None, **_: Any) -> None:
    """The consumer's loop runs."""
    growth.consumer_ready(sender)


WIRING = {
    signals.worker_ready: consumer_ready,
    signals.worker_process_init: child_started,
    signals.worker_shutdown: worker_ended,
    signals.task_failure: lost_in_main,
}


def connect() -> None:
    """Wire the signals and the worker's steps, once per process."""
    for wired, receiver in WIRING.items():
        wired.connect(receiver, weak=False, dispatch_uid=f"celery_jobs.{receiver.__name__}")
    app.steps["worker"].add(JobsStep)
    app.steps["consumer"].update((EventBatches, Connected))
