"""What this process is: its settings, its store, whom it runs jobs as, and where it announces changes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from celery_jobs.records.runs import Runner
from celery_jobs.records.settings import Settings, load_settings
from celery_jobs.records.store import Store
from celery_jobs.tasks import plugins
from celery_jobs.tasks.hints import Hints
from celery_jobs.tasks.hooks import Hooks

if TYPE_CHECKING:
    from celery_jobs.tasks.dispatch import Dispatcher
    from celery_jobs.tasks.ends import Ends
    from celery_jobs.tasks.errands import Errands


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

    @cached_property
    def ends(self) -> Ends:
        """Where Python callers of this process wait for the ends of jobs."""
        from celery_jobs.tasks.ends import Ends

        return Ends(self.store, self.hints)

    @cached_property
    def errands(self) -> Errands:
        """What follows their writes."""
        from celery_jobs.tasks.errands import Errands

        return Errands(self)

    def end_calls(self) -> None:
        """Nobody waits any more, and nothing follows."""
        for made in {"ends", "errands"} & vars(self).keys():
            vars(self)[made].close()

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
        become(Process(settings, Store(settings.database_url), Hints(settings), hooks=plugins.hooks(settings)))
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
