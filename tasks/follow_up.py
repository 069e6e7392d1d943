"""What follows a write of a caller without a service around it: the next dispatch, and a word to the workers.

A service's or a worker's process has what that takes already; a script, or a child of a prefork worker, gets its own.
"""

from __future__ import annotations

import threading

from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.duty import stop_all
from celery_jobs.tasks.nudge import Nudges
from celery_jobs.tasks.process import Process

_SELDOM_SECONDS = 3600.0  # by itself: looking round for others' jobs is the business of services and workers


class FollowUp:
    """Runs them in the background; each may be lost, since every service and worker looks once a second anyway."""

    def __init__(self, here: Process) -> None:
        self._here = here
        # with an embedded service elsewhere, nobody but that service reaches its broker
        self._reaches = not here.settings.embedded
        self._dispatcher: Dispatcher | None = None
        self._nudges: Nudges | None = None
        self._making = threading.Lock()

    @property
    def trouble(self) -> str | None:
        """Why the broker takes no messages of this process at the moment; None where it does, or was not tried."""
        dispatcher = self._here.dispatcher or self._dispatcher
        return None if dispatcher is None else dispatcher.trouble

    def wake(self, queue: str | None = None) -> None:
        """Something in this queue may start now; in any, where None."""
        if self._here.dispatcher is not None:
            self._here.dispatcher.wake(queue)
        elif self._reaches:
            self._dispatching().wake(queue)

    def look(self, task_id: str, worker: str | None) -> None:
        """A worker shall look at the record of this job, which was canceled."""
        if self._here.settings.embedded:
            active_runs.look_now()
        else:
            self._nudging().look(task_id, worker)

    def grow(self) -> None:
        """A limit was raised."""
        if self._reaches:
            self._nudging().grow()

    def close(self) -> None:
        """End what was begun here; what is under way gets a second."""
        dispatcher, nudges = self._dispatcher, self._nudges
        self._dispatcher = self._nudges = None
        stop_all(*(dispatcher.duties if dispatcher else ()), *(nudges.duties if nudges else ()))
        if dispatcher is not None:
            dispatcher.close()

    def _dispatching(self) -> Dispatcher:
        with self._making:
            if self._dispatcher is None:
                self._dispatcher = Dispatcher(self._here.store, _SELDOM_SECONDS)
                self._dispatcher.start()
            return self._dispatcher

    def _nudging(self) -> Nudges:
        with self._making:
            if self._nudges is None:
                self._nudges = Nudges(embedded=False)
                self._nudges.start()
            return self._nudges
