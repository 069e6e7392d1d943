"""What a worker does besides running jobs: its row and lease, dispatch, sweeping, and watching over its children."""

from __future__ import annotations

import logging
import os
import platform
import threading
from typing import Any
from uuid import uuid4

from celery_jobs.records import queues
from celery_jobs.records.cancel import PREFORK_POOL
from celery_jobs.records.migrate import check
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.records.workers import WorkerRow
from celery_jobs.tasks import configured, process
from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.children import Children
from celery_jobs.tasks.control import LOOK_SIGNAL
from celery_jobs.tasks.cutoff import CutOff
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.duty import stop_all
from celery_jobs.tasks.growth import Growth
from celery_jobs.tasks.heartbeat import Heartbeat
from celery_jobs.tasks.hints import Hints
from celery_jobs.tasks.job import registered
from celery_jobs.tasks.process import Process
from celery_jobs.tasks.sweep import Sweeper
from celery_jobs.tasks.wake import wake_after_each_job

_log = logging.getLogger("celery_jobs.agent")


class Agent:
    """One per worker process (its main, on prefork)."""

    def __init__(self, worker: Any, settings: Settings) -> None:
        self._worker = worker
        self._store = Store(settings.database_url)
        check(self._store)
        here = Process(
            settings,
            self._store,
            Hints(settings),
            worker=worker.hostname,
            incarnation=uuid4().hex,
            hooks=configured.hooks(settings),
        )
        process.become(here)
        self._here = here
        self.dispatcher = here.dispatcher = Dispatcher(self._store)
        self._sweeper = Sweeper(self._store, self.dispatcher, here.hints, settings)
        self._heartbeat: Heartbeat | None = None
        self._growth = Growth(settings.worker_timeout_seconds)
        self.children = Children(worker, self._store, here, self.dispatcher)
        self.cut_off = CutOff(here, worker, self.children)

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
        self.children.start()
        wake_after_each_job(self._worker.pool, self.dispatcher)

    def stopping(self) -> None:
        """A warm shutdown has begun; running jobs finish, and the lease is renewed until they have."""
        if self._heartbeat is not None:
            self._heartbeat.stopping()
        patience = self._here.settings.shutdown_timeout_seconds
        if patience is not None:  # otherwise as long as they take, as Celery does
            timer = threading.Timer(patience, self.cut_off.now)
            timer.daemon = True
            timer.start()

    def stop(self) -> None:
        """Every job of this worker has ended, or was cut off."""
        if self._heartbeat is None:
            return
        background = [*self._growth.duties, *self.dispatcher.duties, *self._sweeper.duties, *self._heartbeat.duties]
        stop_all(*self.children.duties, *background)
        self.dispatcher.close()
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
            pool=PREFORK_POOL if self.children.forks else "threads",
            slots=self.slots(),
            queues=sorted(self._worker.app.amqp.queues.consume_from),
            tasks=sorted(registered()),
        )

    def _was_buried(self) -> None:
        """The record gave this worker's jobs away while it was silent: every process drops the runs it lost."""
        active_runs.look_now()
        self.children.signal(LOOK_SIGNAL)
