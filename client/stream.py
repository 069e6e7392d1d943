"""The tasks of a worker, one after the other, as they come.

A request that waits cannot be ended from outside without closing the caller's HTTP client. So it runs in a thread of
its own while `__next__` waits for what it brings or for `stop()`, whichever is first. What a request brings after the
stop is kept for the next stream of the same worker; taking the worker away gives it back to the server at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Final

from celery_jobs.client.api import ApiManager
from celery_jobs.client.claims import Claim, Claims, GivenWorkerClaims
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
        self._asking = False
        self._backoff = Backoff()
        # None wakes; a SimpleQueue may be fed from a signal handler that interrupts whoever waits at it
        self._inbox: SimpleQueue[Claim | BaseException | None] = SimpleQueue()

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
            task = self._claims.kept() or self._next_claim()
            if task is not None:
                return task
        raise StopIteration

    def _next_claim(self) -> ClaimedTask | None:
        begun = time.monotonic()
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._ask, name="celery-jobs-claim", daemon=True).start()
        found = self._inbox.get()
        if found is None:  # stopped: what came at this very moment is still given out
            return self._late()
        self._asking = False
        if isinstance(found, BaseException):
            self._pause(self._pause_after(found))
            return None
        self._works_again()
        if found.task is None:
            shortest = min(self.interval, _SHORTEST_ROUND_SECONDS) if found.waited else self.interval
            self._pause(begun + shortest - time.monotonic())
        return found.task

    def _ask(self) -> None:
        try:
            found: Claim | BaseException = self._claims.ask(WAIT_SECONDS)
        except BaseException as error:  # raised where it can be caught
            found = error
        self._inbox.put(found)
        if self._stopped:
            if (task := self._late()) is not None:
                self._claims.keep(task)
            self._inbox.put(None)  # the one that was to wake `__next__` may have been taken here

    def _late(self) -> ClaimedTask | None:
        """A task in the inbox of a stopped stream, for whoever looks first."""
        while True:
            try:
                found = self._inbox.get_nowait()
            except Empty:
                return None
            if isinstance(found, Claim) and found.task is not None:
                return found.task

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
