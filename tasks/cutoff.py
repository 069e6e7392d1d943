"""Ending a worker that waits no longer: its shutdown timeout has passed, it shall end cold, or a second signal came.

What still runs is canceled as shut down, or waits again where its task is safe to run again.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from celery import signals
from celery.platforms import EX_FAILURE
from celery.worker import state as worker_state

from celery_jobs.records import runs, workers
from celery_jobs.tasks import metrics
from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.children import Children, is_gone
from celery_jobs.tasks.control import LOOK_SIGNAL
from celery_jobs.tasks.lifeline import ONE_WISH_SECONDS
from celery_jobs.tasks.process import Process

UNWIND_SECONDS = 2.0  # what interrupted coroutines get to clean up in
_WRITE_SECONDS = 2.0
_ALL_SECONDS = 8.0
# a supervisor that signals a whole group, or a terminal and the parent, mean one wish
_log = logging.getLogger("celery_jobs.cutoff")


class CutOff:
    """Ends the runs of one worker, once."""

    def __init__(self, here: Process, worker: Any, children: Children) -> None:
        self._here = here
        self._worker = worker
        self._children = children
        self._once = threading.Lock()  # never released
        self._holding: set[int] = set()

    def now(self) -> bool:
        """Do it and wait for it, for a bounded time; False when it had begun before. Safe in a signal handler."""
        first = self._once.acquire(blocking=False)
        if first:
            _within(_ALL_SECONDS, self._end)  # in a thread, since a signal may have come while this one held a lock
        return first

    def _end(self) -> None:
        """The record says so first, then every process ends the runs that are no longer its own."""
        _within(2 * _WRITE_SECONDS, self._write)
        active_runs.look_now()
        self._children.signal(LOOK_SIGNAL)
        deadline = time.monotonic() + UNWIND_SECONDS
        while self._unwinding() and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self._children.forks:
            self._worker.pool.abandon()
        self._children.signal(signal.SIGKILL)  # those whose code did not let itself be stopped
        _within(_WRITE_SECONDS, self._write)  # what was claimed in between, such as by claims that an outage held up

    def _write(self) -> None:
        try:
            rows = runs.own_runs(self._here.store, self._here.incarnation)
            self._holding = {row.pid for row in rows if row.pid is not None}
            closed = self._here.store.write_within(_WRITE_SECONDS, workers.cancel_for_shutdown, self._here.incarnation)
            self._here.hints.changed(*closed)
            metrics.closed(self._here.store, closed)
        except Exception as error:
            _log.warning("the jobs that are cut off are left to the sweeper: %s", error)

    def _unwinding(self) -> bool:
        if self._children.forks:
            return any(not is_gone(pid) for pid in self._holding)
        return any(run.interrupt is not None for run in active_runs.running())


def _within(seconds: float, work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, name="cut-off", daemon=True)
    thread.start()
    thread.join(seconds)


class ColdShutdown:
    """The signals that end a worker at once: SIGQUIT, and a second SIGTERM or SIGINT; the next one after that kills."""

    def __init__(self, worker: Any, cut_off: CutOff) -> None:
        self._worker = worker
        self._cut_off = cut_off
        self._pid = os.getpid()
        self._heard_at = 0.0

    def install(self) -> None:
        """In the main thread, after Celery has installed its own handlers."""
        signal.signal(signal.SIGQUIT, self._cold)
        if os.environ.get("REMAP_SIGTERM") == "SIGQUIT":
            signal.signal(signal.SIGTERM, self._cold)
        signals.worker_shutting_down.connect(self._shutting_down, weak=False, dispatch_uid="celery_jobs.cold_shutdown")

    def _shutting_down(self, how: str = "", **_: Any) -> None:
        """Sent by Celery in the handler of the first signal."""
        self._heard_at = time.monotonic()
        if how == "Warm" and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._again)

    def _again(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._heard_at >= ONE_WISH_SECONDS:
            self._cold(number, frame)

    def _cold(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        if self._heard_at and worker_state.should_terminate:
            os._exit(EX_FAILURE)
        self._heard_at = time.monotonic()
        for again in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(again, self._again)
        self._worker.wait_for_soft_shutdown()
        _log.warning("%s: what still runs is ended at once", signal.Signals(number).name)
        signals.worker_shutting_down.send(
            sender=self._worker.hostname, sig=signal.Signals(number).name, how="Cold", exitcode=EX_FAILURE
        )
        self._worker.exitcode = worker_state.should_terminate = EX_FAILURE
        self._cut_off.now()
