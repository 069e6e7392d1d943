"""What a worker does besides running jobs: its row and lease, dispatch, sweeping, and watching over its children."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import threading
import time
from collections import deque
from typing import Any
from uuid import uuid4

from celery_jobs.records import queues, runs, workers
from celery_jobs.records.cancel import PREFORK_POOL
from celery_jobs.records.ids import JobId
from celery_jobs.records.migrate import check
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.records.workers import WorkerRow
from celery_jobs.tasks import metrics, process
from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.control import LOOK_SIGNAL
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.duty import Duty, stop_all
from celery_jobs.tasks.force import ForcedEnds
from celery_jobs.tasks.growth import Growth
from celery_jobs.tasks.heartbeat import Heartbeat
from celery_jobs.tasks.hints import Hints
from celery_jobs.tasks.job import registered
from celery_jobs.tasks.process import Process
from celery_jobs.tasks.sweep import Sweeper
from celery_jobs.tasks.wake import wake_after_each_job

CHILDREN_LOOK_SECONDS = 1.0
UNWIND_SECONDS = 2.0  # what interrupted coroutines get to clean up in
_log = logging.getLogger("celery_jobs.agent")


class Agent:
    """One per worker process (its main, on prefork)."""

    def __init__(self, worker: Any, settings: Settings) -> None:
        self._worker = worker
        self._store = Store(settings.database_url)
        check(self._store)
        here = Process(settings, self._store, Hints(settings), worker=worker.hostname, incarnation=uuid4().hex)
        process.become(here)
        self._here = here
        self.dispatcher = Dispatcher(self._store)
        self._sweeper = Sweeper(self._store, self.dispatcher, here.hints, settings)
        self._heartbeat: Heartbeat | None = None
        self._growth = Growth(settings.worker_timeout_seconds)
        self._children = Duty("children", self._look_at_children, CHILDREN_LOOK_SECONDS)
        self._missing: set[int] = set()
        self._ended: deque[tuple[JobId, str | None]] = deque()
        self._forced_ends = ForcedEnds(self._store, here.incarnation, settings.cancel_grace_seconds)

    def start(self) -> None:
        """After the pool, before the first message."""
        row = self._row()
        try:
            self._store.write(queues.ensure, row.queues)
            self._store.write(
                queues.set_start_limit, self._here.settings.default_queue, self._here.settings.max_concurrency
            )
        except Exception as error:
            _log.warning("the queues could not be recorded yet: %s", error)
        timeout = self._here.settings.worker_timeout_seconds
        self._heartbeat = Heartbeat(self._store, row, timeout, self.slots, self._was_buried)
        self._heartbeat.start()
        self._sweeper.start()
        self.dispatcher.start()
        self._growth.start()
        if self._forks():
            self._children.start()
        wake_after_each_job(self._worker.pool, self.dispatcher)

    def stopping(self) -> None:
        """A warm shutdown has begun; running jobs finish, and the lease is renewed until they have."""
        if self._heartbeat is not None:
            self._heartbeat.stopping()
        patience = self._here.settings.shutdown_timeout_seconds
        if patience is not None:  # otherwise as long as they take, as Celery does
            timer = threading.Timer(patience, self._cut_off)
            timer.daemon = True
            timer.start()

    def _cut_off(self) -> None:
        """The time is up: the record says so first, then every process ends the runs that are no longer its own."""
        try:
            closed = self._store.write_within(UNWIND_SECONDS / 2, workers.cancel_for_shutdown, self._here.incarnation)
            self._here.hints.changed(*closed)
            self._everybody_looks()
            time.sleep(UNWIND_SECONDS)
            metrics.closed(self._store, closed)
        except Exception as error:  # nor would their processes find out that they were canceled
            _log.warning("the jobs that are cut off are left to the sweeper: %s", error)
        if not self._forks():
            self._worker.pool.abandon()
        for child in self._pool_processes():  # those whose code did not let itself be stopped
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Every job of this worker has ended."""
        if self._heartbeat is None:
            return
        background = [*self._growth.duties, *self.dispatcher.duties, *self._sweeper.duties, *self._heartbeat.duties]
        stop_all(self._children, *background)
        self.dispatcher.stop()
        self._heartbeat.stop()
        self._heartbeat = None
        self._here.hints.close()

    def slots(self) -> int:
        """How many jobs this worker can run at once now."""
        pool = self._worker.pool
        return int(getattr(pool, "num_processes", None) or pool.limit or 1)  # on prefork, `limit` does not grow

    def _row(self) -> WorkerRow:
        return WorkerRow(
            incarnation=self._here.incarnation,
            name=self._worker.hostname,
            host=platform.node(),
            pid=os.getpid(),
            pool=PREFORK_POOL if self._forks() else "threads",
            slots=self.slots(),
            queues=sorted(self._worker.app.amqp.queues.consume_from),
            tasks=sorted(registered()),
        )

    def _forks(self) -> bool:
        return "prefork" in type(self._worker.pool).__module__

    def _was_buried(self) -> None:
        """The record gave this worker's jobs away while it was silent: every process drops the runs it lost."""
        self._everybody_looks()

    def _everybody_looks(self) -> None:
        active_runs.look_now()
        for child in self._pool_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, LOOK_SIGNAL)

    def _pool_processes(self) -> list[Any]:
        return list(getattr(getattr(self._worker.pool, "_pool", None), "_pool", None) or ()) if self._forks() else []

    def child_ended(self, job_id: JobId, error: str | None = None) -> None:
        """A child of the pool ended with its job: by a time limit, which `error` says, or nobody knows why."""
        self._ended.append((job_id, error))
        self._children.wake()

    def _record_ends(self) -> None:
        while self._ended:
            job_id, error = self._ended[0]
            if error is None:
                # where the child ended before its claim, the job waits again; a claimed run is closed by the look at
                # the children, which knows that its process is gone
                runs.undispatch(self._store, job_id)
            elif self._store.write(workers.close_run, job_id, self._here.incarnation, error):
                self._here.hints.changed(job_id)
                metrics.closed(self._store, [job_id])
            self._ended.popleft()  # only now: it is tried again after an outage

    def _look_at_children(self) -> None:
        """End the runs of children that are gone for two looks (the first may race with their own last report)."""
        self._record_ends()
        rows = runs.own_runs(self._store, self._here.incarnation)
        self._forced_ends.look(rows, {child.pid for child in self._pool_processes()})
        gone = {row.pid for row in rows if row.pid is not None and _is_gone(row.pid)}
        lost = sorted(gone & self._missing)
        self._missing = gone
        if lost:
            closed = self._store.write(
                workers.close_lost_pids, self._here.incarnation, lost, "the process that ran the job ended unexpectedly"
            )
            self._here.hints.changed(*closed)
            metrics.closed(self._store, closed)
            self.dispatcher.wake()


def _is_gone(pid: int) -> bool:
    """True when this child has ended, whether or not the pool has noticed."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
