"""Cancel hints: after the record has decided, whoever runs the code is told to look; losing one costs a second."""

from __future__ import annotations

import logging
import threading

from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.duty import Duty

_log = logging.getLogger("celery_jobs.cancel")
_LOOK_AT_LEAST_SECONDS = 3600.0  # it only works when woken


class CancelHints:
    """Sends the hints in the background, many in one message."""

    def __init__(self, embedded: bool) -> None:
        self._embedded = embedded
        self._waiting: dict[str | None, list[str]] = {}
        self._lock = threading.Lock()
        self._duty = Duty("cancel-hints", self._send, _LOOK_AT_LEAST_SECONDS)

    def start(self) -> None:
        """Begin."""
        if not self._embedded:
            self._duty.start()

    def stop(self) -> None:
        """End."""
        if not self._embedded:
            self._duty.stop()

    def look(self, task_id: str, worker: str | None) -> None:
        """`worker` (or any, where None) shall look at this job's record now."""
        if self._embedded:
            active_runs.look_now()
            return
        with self._lock:
            self._waiting.setdefault(worker, []).append(task_id)
        self._duty.wake()

    def _send(self) -> None:
        from celery_jobs.tasks.control import ask_to_look

        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for worker, task_ids in waiting.items():
            try:
                ask_to_look(task_ids, worker)
            except Exception as error:
                _log.info("a cancel hint was lost, the worker finds the mark itself: %r", error)
