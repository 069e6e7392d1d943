"""The runs of this process, and the look at their records that finds cancel marks (contract, section 2).

A hint wakes the look at once; without any hint it happens about once a second while something runs, since hints get
lost. A run is here before it claims, so that no cancel can fall between the claim and its registration.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_jobs.records import runs, workers
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.ids import JobId
from celery_jobs.records.reads import FunctionCall
from celery_jobs.records.runs import Claim, OwnRun
from celery_jobs.records.states import JobStatus
from celery_jobs.tasks import metrics, process
from celery_jobs.tasks.progress import progress_writer

LOOK_EVERY_SECONDS = 1.0
_log = logging.getLogger("celery_jobs.active")


Called = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(eq=False)
class Run:
    """One run of a job in this process."""

    job_id: JobId
    token: str
    claim: Claim | None = None  # None until the claim is known to have succeeded
    coroutine: bool = False  # whether its code can be interrupted
    called_with: Called | None = None  # the arguments as the code has them, once it has begun
    function_call: FunctionCall | None = None  # of a job that runs no task
    cancel_requested: bool = False
    lost: bool = False  # the record no longer says that this run is ours
    ending: bool = False  # the code has returned; its end is being recorded
    interrupt: Callable[[], None] | None = None  # set while a coroutine runs
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stop(self, *, lost: bool = False) -> None:
        """Mark the run and interrupt its coroutine, once."""
        with self.lock:
            first = not (self.cancel_requested or self.lost)
            self.cancel_requested = self.cancel_requested or not lost
            self.lost = self.lost or lost
            if first and self.interrupt is not None:
                self.interrupt()

    def report(self, current: float | None, total: float | None, message: str | None) -> None:
        """Note how far the code says it is."""
        if self.claim is not None:
            progress_writer.put(self.claim, current, total, message)

    def interruptible_by(self, interrupt: Callable[[], None] | None) -> None:
        """From now on (or no longer) this interrupts the code; at once when the cancel came before."""
        with self.lock:
            self.interrupt = interrupt
            if interrupt is not None and (self.cancel_requested or self.lost):
                interrupt()


class ActiveRuns:
    """The registry of runs and the thread that looks at their records."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}  # by token
        self._strangers: set[str | None] = set()
        # a SimpleQueue, since a signal handler wakes it: its put may interrupt itself, an Event's set would deadlock
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, run: Run) -> None:
        """Register a run, before its claim. A job may have two for a moment: the duplicate will be refused."""
        with self._lock:
            self._runs[run.token] = run
            self._busy.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="run-watch", daemon=True)
                self._thread.start()

    def remove(self, run: Run) -> None:
        """The run has ended and its end is recorded, or it was refused."""
        with self._lock:
            self._runs.pop(run.token, None)

    def look_now(self) -> None:
        """A hint: read the records at once. Safe in a signal handler and from any thread."""
        if self._busy.is_set():  # otherwise nobody takes it out again
            self._wake.put(None)

    def running(self) -> list[Run]:
        """The runs of this process now."""
        with self._lock:
            return list(self._runs.values())

    def forget(self) -> None:
        """In a forked child: the parent's runs and threads are not ours."""
        self.__init__()

    def _watch(self) -> None:
        while True:
            self._busy.wait()
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=LOOK_EVERY_SECONDS)
                while True:  # wakes that gathered are one look
                    self._wake.get_nowait()
            try:
                if not self.look():
                    self._rest()
            except DatabaseUnavailable:
                continue
            except process.ServiceEnded:
                self._runs.clear()  # threads that nobody could stop; they end with the process
                self._rest()
            except Exception:
                _log.exception("looking at the records of running jobs failed; tried again in a second")

    def _rest(self) -> None:
        """Sleep until the next run; only after a look that found none, here or recorded."""
        with self._lock:
            if not self._runs:
                self._busy.clear()

    def look(self) -> bool:
        """Compare the runs of this process with their records once; True while there is any."""
        here = process.current()
        # both before the read: what is added or claimed later may be missing in it
        held = self.running()
        claimed = {run.token for run in held if run.claim is not None}
        rows = {row.token: row for row in runs.own_runs(here.store, here.incarnation, here.pid)}
        for run in held:
            row = rows.pop(run.token, None)
            if row is None and run.token in claimed:
                self._lose(run)
            elif row is not None and row.status is JobStatus.canceling:
                run.stop()
        self._close_strangers(list(rows.values()))
        return bool(held or rows)

    def _lose(self, run: Run) -> None:
        if run.lost or run.ending:
            return
        _log.warning("job %s is no longer this worker's: its run is ignored from now on", run.job_id)
        run.stop(lost=True)
        if process.current().forks and run.interrupt is None:
            os.kill(os.getpid(), signal.SIGKILL)  # a plain function: only the end of the process stops it

    def _close_strangers(self, rows: list[OwnRun]) -> None:
        """End rows in this process's name that it did not hold at two looks: their run ended without its report."""
        here = process.current()
        strangers = {row.token: row for row in rows}
        for token in strangers.keys() & self._strangers:
            job_id = strangers[token].job_id
            if here.store.write(workers.close_stranger, job_id, token or ""):
                here.hints.changed(job_id)
                metrics.closed(here.store, [job_id])
        self._strangers = set(strangers)


active_runs = ActiveRuns()
