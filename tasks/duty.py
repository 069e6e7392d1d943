"""A background duty of this process: a thread that works when woken and at the latest after an interval."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery_jobs.records.errors import DatabaseUnavailable

_log = logging.getLogger("celery_jobs.duty")


class Duty:
    """Runs `work` in a thread of its own: after each wake, and every `interval_seconds`; wakes in between coalesce."""

    def __init__(self, name: str, work: Callable[[], None], interval_seconds: float) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self._work = work
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first work happens at once."""
        self._wanted.set()
        self._thread.start()

    def wake(self) -> None:
        """There is something to do now."""
        self._wanted.set()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """End after the work under way."""
        self._ended.set()
        self._wanted.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            self._wanted.wait(self.interval_seconds)
            self._wanted.clear()
            if self._ended.is_set():
                return
            try:
                self._work()
            except DatabaseUnavailable as error:
                _log.warning("%s: the database is not reachable: %s", self.name, error.reason)
                self._ended.wait(0.2)
            except Exception:
                _log.exception("%s failed and will be tried again", self.name)
                self._ended.wait(min(self.interval_seconds, 1.0))
