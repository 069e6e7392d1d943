"""A worker inside the API process, on a broker in memory: the whole service with no other server (contract, section 9).

Celery's `WorkController` in a thread, not its command-line class, which takes over signals and logging. The record is
the truth here too: what the last process had handed over waits again, what it was running is closed as lost.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from typing import Any

from celery import signals
from celery.app import trace
from celery.worker import WorkController
from celery.worker import state as worker_state

from celery_jobs.records import admission, workers
from celery_jobs.records.workers import WorkerRow
from celery_jobs.tasks import metrics
from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.context import show_what_jobs_log
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.duty import stop_all
from celery_jobs.tasks.growth import Growth, consumer_ready
from celery_jobs.tasks.heartbeat import Heartbeat
from celery_jobs.tasks.job import registered
from celery_jobs.tasks.pool import GrowingThreadPool
from celery_jobs.tasks.process import Process
from celery_jobs.tasks.wake import wake_after_each_job

DEFAULT_SLOTS = 32
_IDLE_SECONDS = 1.0
_UNWIND_SECONDS = 2.0  # what interrupted coroutines get to clean up in
_log = logging.getLogger("celery_jobs.embedded")


class _Controller(WorkController):
    """Celery's worker without its command line; sends what that class would."""

    ready: threading.Event

    def on_before_init(self, **kwargs: Any) -> None:
        self.ready = threading.Event()
        trace.setup_worker_optimizations(self.app, self.hostname)

    def on_consumer_ready(self, consumer: Any) -> None:
        signals.worker_ready.send(sender=consumer)
        consumer_ready(consumer)
        self.ready.set()


class EmbeddedWorker:
    """The worker of this process."""

    def __init__(self, here: Process, dispatcher: Dispatcher, queues: list[str], slots: int) -> None:
        self._here = here
        self._dispatcher = dispatcher
        self._queues = queues
        self._slots = slots
        self._controller: Any = None
        self._thread: threading.Thread | None = None
        self._heartbeat: Heartbeat | None = None
        self._hurried = threading.Event()
        self._growth = Growth(here.settings.worker_timeout_seconds)

    def start(self) -> None:
        """Settle what the last process left, then take jobs."""
        show_what_jobs_log()
        self._settle()
        worker_state.should_stop = worker_state.should_terminate = None
        self._controller = _Controller(
            app=app,
            hostname=self._here.worker,
            pool_cls=GrowingThreadPool,
            concurrency=self._slots,
            queues=self._queues,
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
            task_events=False,
            loglevel=logging.WARNING,
        )
        wake_after_each_job(self._controller.pool, self._dispatcher)
        self._heartbeat = Heartbeat(
            self._here.store,
            self._row(),
            self._here.settings.worker_timeout_seconds,
            lambda: self._controller.pool.limit,
            active_runs.look_now,
        )
        self._heartbeat.start()
        self._growth.start()
        self._thread = threading.Thread(target=self._run, name="embedded-worker", daemon=True)
        self._thread.start()
        if not self._controller.ready.wait(10):
            _log.error("the embedded worker is not ready yet")

    def learn(self, queues: list[str]) -> None:
        """Take jobs of tasks that were declared since the start, and of these queues."""
        self._queues = queues
        if self._heartbeat is not None:
            self._heartbeat.register_as(self._row())
        consumer = self._controller.consumer
        consumer.update_strategies()  # before any message of them can come
        for queue in queues:
            consumer.call_soon(consumer.add_task_queue, queue)
        self._wake_consumer()

    def stop(self, timeout_seconds: float) -> None:
        """Let running jobs finish for so long, then end what is left as shut down."""
        if self._controller is None or self._heartbeat is None:
            return
        self._heartbeat.stopping()
        worker_state.should_stop = os.EX_OK
        if not active_runs.running():  # only its own loop is to end, which must not go on beside a later service's
            timeout_seconds = max(timeout_seconds, _IDLE_SECONDS)
        self._end_within(timeout_seconds, self._hurried)
        recorded = True
        if active_runs.running():
            cut_off_at = time.monotonic()
            recorded = self._cut_off()
            self._end_within(
                max(_UNWIND_SECONDS / 4, cut_off_at + _UNWIND_SECONDS - time.monotonic()), threading.Event()
            )
            if recorded and active_runs.running():
                self._cut_off()  # what was claimed in between, such as by claims that an outage held up
        else:
            # it runs nothing, but must not take what the next service in this process hands over
            self._end_within(_UNWIND_SECONDS)
        stop_all(*self._growth.duties, *self._heartbeat.duties)
        self._heartbeat.stop(leave=recorded)
        worker_state.should_stop = None

    def hurry(self) -> None:
        """Wait no longer for running jobs."""
        self._hurried.set()

    def _run(self) -> None:
        self._controller.start()  # catches its own errors, says so and returns
        if worker_state.should_stop is None and self._heartbeat is not None:
            _log.critical("the embedded worker has ended unexpectedly; restart the service")
            self._heartbeat.stop()  # so that health says that no worker is alive

    def _row(self) -> WorkerRow:
        return WorkerRow(
            incarnation=self._here.incarnation,
            name=self._here.worker,
            host=platform.node(),
            pid=os.getpid(),
            pool="embedded",
            slots=self._slots,
            queues=self._queues,
            tasks=sorted(registered()),
        )

    def _settle(self) -> None:
        for incarnation, pid in self._here.store.read(workers.ended_embedded, platform.node()):
            if pid == os.getpid() or not _is_alive(pid):
                closed = self._here.store.write(workers.bury, incarnation, known_dead=True)
                metrics.closed(self._here.store, closed)
        self._here.store.write(admission.take_all_back)

    def _end_within(self, timeout_seconds: float, hurried: threading.Event | None = None) -> None:
        """Wait for the worker's thread, which ends when its last job has."""
        deadline = time.monotonic() + timeout_seconds
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            if hurried is not None and hurried.is_set():
                return
            self._wake_consumer()
            self._thread.join(0.05)

    def _wake_consumer(self) -> None:
        """The consumer sleeps up to 2 s for a message before it sees that it shall stop, and once more after."""
        try:
            app.control.broadcast("ping")
        except Exception as error:
            _log.debug("the consumer ends by its own timer: %r", error)

    def _cut_off(self) -> bool:
        """The time is up: the record says so first, then coroutines are interrupted; threads end with the process.

        False where the database did not take it in time.
        """
        recorded = False
        try:
            closed = self._here.store.write_within(
                _UNWIND_SECONDS * 3 / 4, workers.cancel_for_shutdown, self._here.incarnation
            )
            self._here.hints.changed(*closed)
            recorded = True
            metrics.closed(self._here.store, closed)
        except Exception as error:
            _log.warning("the jobs that are cut off are closed at the next start: %s", error)
        for run in active_runs.running():
            run.stop(lost=True)
        return recorded


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
