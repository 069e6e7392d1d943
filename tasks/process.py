"""What this process is: its settings, its store, whom it runs jobs as, and where it announces changes."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_jobs.records.runs import Runner
from celery_jobs.records.settings import Settings, load_settings
from celery_jobs.records.store import Store
from celery_jobs.tasks import configured, coroutines
from celery_jobs.tasks.hints import Hints
from celery_jobs.tasks.hooks import Hooks

if TYPE_CHECKING:
    from celery_jobs.tasks.dispatch import Dispatcher
    from celery_jobs.tasks.ends import Ends
    from celery_jobs.tasks.follow_up import FollowUp


@dataclass
class Process:
    """One per operating system process; a forked child makes its own from its parent's."""

    settings: Settings
    store: Store
    hints: Hints
    worker: str = ""
    incarnation: str = ""  # empty in a process that runs no jobs
    hooks: Hooks = field(default_factory=Hooks)
    forks: bool = False  # True in the children of a prefork worker
    pid: int = field(default_factory=os.getpid)
    dispatcher: Dispatcher | None = None  # where this process dispatches
    # of the program that the worker is part of; None where it is a process of its own
    loop: asyncio.AbstractEventLoop | None = None
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _ends: Ends | None = None
    _follow_up: FollowUp | None = None

    @property
    def ends(self) -> Ends:
        """Where Python callers of this process wait for the ends of jobs."""
        from celery_jobs.tasks.ends import Ends

        with self._making:
            self._ends = self._ends or Ends(self.store, self.hints)
            return self._ends

    @property
    def follow_up(self) -> FollowUp:
        """What follows their writes."""
        from celery_jobs.tasks.follow_up import FollowUp

        with self._making:
            self._follow_up = self._follow_up or FollowUp(self)
            return self._follow_up

    def end_calls(self) -> None:
        """Nobody waits any more, and nothing follows."""
        for made in (self._ends, self._follow_up):
            if made is not None:
                made.close()

    def program_loop(self) -> asyncio.AbstractEventLoop:
        """Where coroutines run that belong to the program and to no task."""
        return self.loop or coroutines.loop()

    @property
    def runner(self) -> Runner:
        """As whom this process claims jobs."""
        return Runner(self.worker, self.incarnation, self.pid)


_current: Process | None = None
_ended = False
# a forked child must not close its parent's connections, so it keeps them unused
_parents: list[Process] = []


class ServiceEnded(RuntimeError):
    """A thread has outlived the service that it belonged to."""


def current() -> Process:
    """This process; made from the environment where nothing has ever started one (a script that submits)."""
    if _ended:
        raise ServiceEnded("the service of this process has ended")
    if _current is None:
        settings = load_settings()
        become(Process(settings, Store(settings.database_url), Hints(settings), hooks=configured.hooks(settings)))
    assert _current is not None
    return _current


def is_known() -> bool:
    """Whether this process is a service or a worker, or has made itself known as one that submits."""
    return _current is not None


def become(process: Process | None) -> None:
    """Make `process` the current one; None when its service has ended."""
    global _current, _ended
    _current, _ended = process, process is None


def become_child() -> Process:
    """In a forked child: connections and threads of its own, the same worker."""
    parent = current()
    _parents.append(parent)
    child = Process(
        settings=parent.settings,
        store=Store(parent.settings.database_url, pool_size=2),
        hints=Hints(parent.settings),
        worker=parent.worker,
        incarnation=parent.incarnation,
        hooks=parent.hooks,
        forks=True,
    )
    become(child)
    return child
