"""What one process does beside answering: dispatch, nudge, sweep, and run jobs where no broker is set.

Begun and closed as a whole: a `begin` that fails leaves nothing half started.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from functools import partial
from uuid import uuid4

from celery_jobs.records import queues
from celery_jobs.records.errors import SettingsError
from celery_jobs.records.migrate import check, upgrade
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.tasks import call, process
from celery_jobs.tasks.celery import import_tasks, use_embedded_broker
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.duty import Duty, stop_all
from celery_jobs.tasks.embedded import DEFAULT_SLOTS, EmbeddedWorker
from celery_jobs.tasks.folder import FolderLock
from celery_jobs.tasks.hints import Hints
from celery_jobs.tasks.hooks import Hooks
from celery_jobs.tasks.job import offered
from celery_jobs.tasks.nudge import Nudges
from celery_jobs.tasks.process import Process
from celery_jobs.tasks.sweep import Sweeper
from celery_jobs.tasks.worker import most_slots, served_queues

_TIDY_SECONDS = 60.0


class Duties:
    """The running parts of a service; calls block, so they belong in a thread."""

    def __init__(
        self, settings: Settings, store: Store, max_concurrency: int | None, lock: FolderLock, hooks: Hooks
    ) -> None:
        self.store = store
        self.tasks = offered()
        self._settings = settings
        self._lock = lock
        self.hints = Hints(settings)
        self.here = here = Process(settings, store, self.hints, hooks=hooks)
        if settings.embedded:
            here.worker = f"embedded@{platform.node()}"
            here.incarnation = uuid4().hex
        process.become(here)
        served = served_queues(settings)
        store.write(queues.ensure, served)
        store.write(queues.set_start_limit, settings.default_queue, max_concurrency)
        self.dispatcher = here.dispatcher = Dispatcher(store)
        self.nudges = Nudges(settings.embedded)
        self._sweeper = Sweeper(store, self.dispatcher, self.hints, settings)
        self._tidying = Duty("held-calls", partial(call.drop_ended, store), _TIDY_SECONDS)
        self._worker: EmbeddedWorker | None = None
        if settings.embedded:
            wanted = max(settings.concurrency or DEFAULT_SLOTS, max_concurrency or 0)
            slots = min(wanted, most_slots(settings, "threads"))
            self._worker = EmbeddedWorker(here, self.dispatcher, served, slots)

    def start(self) -> None:
        """Begin; the embedded worker first settles what the last process left."""
        if self._worker is not None:
            self._worker.start()
            self._tidying.start()
        self.dispatcher.start()
        self.nudges.start()
        self._sweeper.start()

    @property
    def behind(self) -> bool:
        """Whether tasks were declared since, which the embedded worker can learn."""
        return self._worker is not None and self.tasks != offered()

    def learn(self) -> None:
        """Take the tasks that were declared meanwhile, and serve their queues."""
        if self._worker is None:
            return
        tasks = offered()
        self._worker.learn(served_queues(self._settings))
        self.tasks = tasks  # last: what can be submitted has a worker that knows it

    def stop(self, timeout_seconds: float) -> None:
        """Admit nothing more; jobs of the embedded worker get so long to end. The database stays open."""
        self.dispatcher.end()
        if self._worker is not None:
            self._worker.stop(timeout_seconds)
            self._worker = None
        stop_all(*self.dispatcher.duties, *self.nudges.duties, *self._sweeper.duties, self._tidying)
        self.dispatcher.close()

    def hurry(self) -> None:
        """What still runs is cut off now, whatever time `stop` gave it."""
        worker = self._worker
        if worker is not None:
            worker.hurry()

    def close(self) -> None:
        """Close the database and release the data folder; after `stop`."""
        self.hints.close()
        process.become(None)
        self.store.close()
        self._lock.release()


class Attached:
    """What a scheduler has in a process that is a worker or a service already: that process's own parts."""

    def __init__(self, here: Process) -> None:
        self.here = here
        self.store, self.hints = here.store, here.hints
        self.tasks = offered()
        self.dispatcher = here.follow_up
        self.nudges = here.follow_up
        self.behind = False

    def learn(self) -> None:
        """Its tasks are those that the process has imported."""
        self.tasks = offered()

    def stop(self, timeout_seconds: float) -> None:
        """The process goes on, however long that is."""

    def hurry(self) -> None:
        """The process decides."""

    def close(self) -> None:
        """Its connections are the process's."""


def attached(settings: Settings | None) -> Attached | None:
    """The parts of this process if it is a worker or a service; SettingsError where `settings` say another database."""
    if not process.is_known():
        return None
    here = process.current()
    if not here.incarnation and here.dispatcher is None:
        return None  # nothing runs in it, nor dispatches
    if settings is not None and here.settings.database_url != settings.database_url:
        raise SettingsError(
            "This process has a scheduler on another database already; shut that down first, or start another process"
        )
    return Attached(here)


def begin(
    settings: Settings,
    max_concurrency: int | None,
    lock_patience_seconds: float,
    hooks: Hooks,
    loop: asyncio.AbstractEventLoop,
) -> Duties:
    """Import the tasks, open the database and begin every duty; SettingsError, DatabaseUnavailable.

    `loop` is the program's.
    """
    if settings.embedded:
        use_embedded_broker()  # before any task is declared: a task takes its settings then
    import_tasks(settings)
    with contextlib.ExitStack() as undo:
        lock = FolderLock(settings.data_dir)
        if settings.embedded:
            lock.acquire(lock_patience_seconds)
            undo.callback(lock.release)
            upgrade(settings)
        store = Store(settings.database_url)
        undo.callback(store.close)
        check(store)
        undo.callback(process.become, None)
        duties = Duties(settings, store, max_concurrency, lock, hooks)
        duties.here.loop = loop if settings.embedded else None
        undo.callback(duties.hints.close)
        undo.callback(duties.stop, 0.0)
        duties.start()
        undo.pop_all()
    return duties
