"""The service behind the fixture: started with the first test that asks for it, and lent to one test after another.

It runs between tests only while the next one takes it too: what does not use the fixture finds its process as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.tasks import configured, process
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.job import registered
from celery_jobs.tasks.scheduler import CeleryScheduler
from celery_jobs.testing.cleaning import clean
from celery_jobs.testing.isolation import no_other_service, no_settings_outside, own_celery, same_path, settings_for
from celery_jobs.testing.loop import LoopThread
from celery_jobs.testing.service import JobsService


class Changes:
    """Counts the hints that some record changed, so that who waits looks at once."""

    def __init__(self) -> None:
        self.count = 0
        self._condition = threading.Condition()

    def ring(self, _: object) -> None:
        """Something changed."""
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    def wait(self, seen: int, timeout: float) -> None:
        """Return when there were more than `seen`, at the latest after `timeout` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self.count != seen, timeout)


@dataclass
class Running:
    """A service that runs."""

    scheduler: CeleryScheduler
    loop: LoopThread
    store: Store
    dispatcher: Dispatcher
    changes: Changes = field(default_factory=Changes)


class Core:
    """At most one service in this process, with the settings of the test that has it."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._undo = ExitStack()
        self._running: Running | None = None
        self._given: Mapping[str, Any] = {}
        self._known: frozenset[str] = frozenset()
        self._lent: JobsService | None = None

    def lend(self, given: Mapping[str, Any]) -> JobsService:
        """The service with these settings, empty; started anew where they are others than before."""
        if self._running is None or self._given != given:
            self.stop()
            settings = settings_for(self._new_folder(), given)
            with ExitStack() as undo:
                self._running = undo.enter_context(_running(settings))
                self._undo, self._given = undo.pop_all(), given
        else:
            self._running.loop.run(self._running.scheduler.learn())
        self._known = frozenset(registered())
        self._lent = JobsService(self._running)
        return self._lent

    def take_back(self) -> None:
        """End and remove what the test has left; AssertionError names the jobs that do not end."""
        if self._lent is not None:
            self._lent.end()
        if self._running is None:
            return
        try:
            stuck = clean(self._running.scheduler, self._running.loop, self._known)
        except BaseException:
            self.stop()
            raise
        if stuck:
            self.stop()
            raise AssertionError("\n".join(["this test has left jobs that do not end when they are canceled:", *stuck]))

    def stop(self) -> None:
        """End the service, if it runs."""
        self._running = None
        self._undo.close()


@contextmanager
def _running(settings: Settings) -> Generator[Running]:
    with ExitStack() as undo:
        undo.enter_context(no_other_service())
        undo.enter_context(own_celery(settings.default_queue))
        loop = LoopThread()
        undo.callback(loop.close)
        with same_path():
            scheduler = loop.run(_started(settings))
        undo.callback(lambda: loop.run(scheduler.shutdown(0)))
        here = process.current()
        assert here.dispatcher is not None
        running = Running(scheduler, loop, here.store, here.dispatcher)
        scheduler.on_hint(running.changes.ring)
        yield running


async def _started(settings: Settings) -> CeleryScheduler:
    configured.scheduler_class(settings)  # its module may need the environment when it is imported
    with no_settings_outside():
        scheduler = configured.make_scheduler(settings, None, 0.0)
    if not isinstance(scheduler, CeleryScheduler):
        raise TypeError(f"jobs_service needs a CeleryScheduler, which {type(scheduler).__name__} is not")
    scheduler.serve_in(settings, 0.0)
    await scheduler.start()
    return scheduler
