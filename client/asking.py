"""One question for a task that is on its way: it goes on when its asker leaves, and another may wait for its answer.

A request that waits cannot be ended from outside without closing the caller's HTTP client, so each runs in a thread of
its own, and whoever asked waits at an inbox, where `stop()` or a signal can reach them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from celery_jobs.client.task import ClaimedTask


@dataclass(frozen=True, slots=True)
class Claim:
    """What came of asking once: a task or none, and whether the server waited for one."""

    task: ClaimedTask | None
    waited: bool


Found = Claim | BaseException
Inbox = SimpleQueue[Found | None]  # may be fed by a signal handler that interrupts whoever waits at it; None wakes


class Asking:
    """Begun when it is made."""

    def __init__(self, ask: Callable[[], Claim]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._inbox: Inbox | None = None
        self._found: Found | None = None
        threading.Thread(target=self._run, name="celery-jobs-claim", daemon=True).start()

    def tell(self, inbox: Inbox) -> None:
        """The answer goes there."""
        with self._lock:
            self._inbox = inbox
            self._deliver()

    def keep(self) -> bool:
        """The answer waits for the next one to be told; False if it was delivered already."""
        with self._lock:
            delivered = self._inbox is not None and self._found is not None
            self._inbox = None
            return not delivered

    def _run(self) -> None:
        try:
            found: Found = self._ask()
        except BaseException as error:  # raised where it can be caught
            found = error
        with self._lock:
            self._found = found
            self._deliver()

    def _deliver(self) -> None:
        if self._inbox is not None and self._found is not None:
            self._inbox.put(self._found)
