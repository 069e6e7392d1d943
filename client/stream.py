"""The tasks of a worker, one after the other, as they come.

`__next__` waits for the answer to a question that is on its way (`asking.py`), or for `stop()`, whichever is first.
What is answered after the stop goes to the next stream of the same worker; taking the worker away gives it back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from queue import Empty
from typing import Final

from celery_jobs.client.api import ApiManager
from celery_jobs.client.asking import Asking, Found, Inbox
from celery_jobs.client.claims import Claims, GivenWorkerClaims
from celery_jobs.client.errors import ClientError
from celery_jobs.client.retry import Backoff
from celery_jobs.client.task import ClaimedTask
from celery_jobs.client.wire import WAIT_SECONDS, Wire

log = logging.getLogger("celery_jobs.client")

# a server that says it waited, and did not, is not asked more often than this
_SHORTEST_ROUND_SECONDS: Final = 1.0


class TaskStream(Iterator[ClaimedTask]):
    """Waits for tasks and gives them out; survives outages of the server. `JobManager.listen` makes one."""

    def __init__(
        self, api: ApiManager, worker_id: str = "", polling_interval: float = 2.0, *, claims: Claims | None = None
    ) -> None:
        if not polling_interval > 0:
            raise ValueError("the interval between two looks must be more than 0 seconds")
        self.api = api
        self.interval = polling_interval
        self._claims = claims or GivenWorkerClaims(Wire(api), worker_id)
        self._stopped = False
        self._backoff = Backoff()
        self._inbox = Inbox()

    @property
    def worker_id(self) -> str | None:
        """For whom it claims; None before the first claim."""
        return self._claims.worker_id

    @property
    def stopped(self) -> bool:
        """True after `stop()`."""
        return self._stopped

    def stop(self) -> None:
        """End the iteration, also while it waits; from any thread, and from a signal handler."""
        self._stopped = True
        self._inbox.put(None)

    def __next__(self) -> ClaimedTask:
        """The next task, however long it takes; errors that are the caller's fault are raised."""
        while not self._stopped:
            task = self._next_claim()
            if task is not None:
                return task
        raise StopIteration

    def _next_claim(self) -> ClaimedTask | None:
        begun = time.monotonic()
        found = self._found()
        if found is None:  # stopped
            return None
        if isinstance(found, BaseException):
            self._pause(self._pause_after(found))
            return None
        self._works_again()
        if found.task is None:
            shortest = min(self.interval, _SHORTEST_ROUND_SECONDS) if found.waited else self.interval
            self._pause(begun + shortest - time.monotonic())
        return found.task

    def _found(self) -> Found | None:
        """What a question brought; None if it was stopped before."""
        wait = 1 if self._backoff.failing else WAIT_SECONDS  # so that the end of an outage is soon told
        asking = self._claims.kept() or Asking(lambda: self._claims.ask(wait))
        try:
            asking.tell(self._inbox)
            found = self._inbox.get()
        except BaseException:  # interrupted, as by Ctrl-C
            if asking.keep():
                self._claims.keep(asking)
            raise
        if found is None and asking.keep():
            self._claims.keep(asking)
            return None
        while found is None:  # it came at the very moment of the stop, and is still given out
            found = self._inbox.get()
        return found

    def _pause_after(self, error: BaseException) -> float:
        if not (isinstance(error, ClientError) and error.transient):
            raise error
        if not self._backoff.failing:
            log.warning("the job service does not answer, trying again until it does: %s", error)
        return self._backoff.pause_after(error)

    def _works_again(self) -> None:
        if self._backoff.failing:
            log.warning("the job service answers again")
            self._backoff.reset()

    def _pause(self, seconds: float) -> None:
        """Sleep until then or until `stop()`."""
        if seconds > 0:
            try:
                self._inbox.get(timeout=seconds)
            except Empty:
                pass
