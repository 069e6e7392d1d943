"""A background duty of this process: a thread that works when woken and at the latest after an interval."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from celery_jobs.records.errors import DatabaseUnavailable

AFTER_OUTAGE_SECONDS = 0.2
_log = logging.getLogger("celery_jobs.duty")


class Duty:
    """Runs `work` in a thread of its own: after each wake, and every `interval_seconds`; wakes in between coalesce.

    An outage of the database is told once when it begins and once when it is over, and so is any other failure.
    """

    def __init__(self, name: str, work: Callable[[], None], interval_seconds: float) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self._work = work
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._given_up = False  # it hangs, as on a server that is silent
        self._failing: str | None = None  # what was told last
        self._failing_since = 0.0

    def start(self) -> None:
        """Begin; the first work happens at once."""
        self._wanted.set()
        self._thread.start()

    def wake(self) -> None:
        """There is something to do now."""
        self._wanted.set()

    def end(self) -> None:
        """End after the work under way; does not wait for it."""
        self._ended.set()
        self._wanted.set()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """End after the work under way, and wait for it so long."""
        self.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread() and not self._given_up:
            self._thread.join(timeout_seconds)
            self._given_up = self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wanted.wait(self.interval_seconds)
            self._wanted.clear()
            if self._ended.is_set():
                return
            try:
                self._work()
            except DatabaseUnavailable as error:
                self._tell("the database is not reachable", error.reason.partition("\n")[0])
                self._ended.wait(AFTER_OUTAGE_SECONDS)
            except Exception as error:
                self._tell(repr(error), "it will be tried again", error)
                self._ended.wait(min(self.interval_seconds, 1.0))
            else:
                self._tell_of_the_end()

    def _tell(self, fault: str, more: str, error: Exception | None = None) -> None:
        if self._failing is None:
            self._failing_since = time.monotonic()
        if self._failing != fault:
            self._failing = fault
            _log.log(logging.ERROR if error else logging.WARNING, "%s: %s: %s", self.name, fault, more, exc_info=error)

    def _tell_of_the_end(self) -> None:
        if self._failing is not None:
            self._failing = None
            _log.warning("%s: works again after %.0f s", self.name, time.monotonic() - self._failing_since)


def stop_all(*duties: Duty, timeout_seconds: float = 1.0) -> None:
    """End all of them, and wait so long for them together: each may hang on a server that is silent."""
    for duty in duties:
        duty.end()
    deadline = time.monotonic() + timeout_seconds
    for duty in duties:
        duty.stop(max(0.0, deadline - time.monotonic()))
