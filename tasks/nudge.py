"""Nudging workers once the record has decided: look at a canceled job, grow to a raised limit. Losing one loses little.

A lost look costs a second, since workers look at their records anyway; growth is asked for until the broker takes it.
"""

from __future__ import annotations

import logging
import threading

from celery_jobs.tasks.active import active_runs
from celery_jobs.tasks.control import ask_to_look
from celery_jobs.tasks.duty import Duty
from celery_jobs.tasks.growth import ask_to_grow

_log = logging.getLogger("celery_jobs.nudge")
_AGAIN_SECONDS = 5.0


class Nudges:
    """Sends them in the background, many in one message; a silent broker never holds up a caller."""

    def __init__(self, embedded: bool) -> None:
        self._embedded = embedded
        self._looks: dict[str | None, list[str]] = {}
        self._grow = False
        self._lock = threading.Lock()
        self._duty = Duty("nudges", self._send, _AGAIN_SECONDS)

    def start(self) -> None:
        """Begin."""
        self._duty.start()

    @property
    def duties(self) -> tuple[Duty, ...]:
        """What runs in the background."""
        return (self._duty,)

    def look(self, task_id: str, worker: str | None) -> None:
        """`worker` (or any, where None) shall look at this job's record now."""
        if self._embedded:
            active_runs.look_now()
            return
        with self._lock:
            self._looks.setdefault(worker, []).append(task_id)
        self._duty.wake()

    def grow(self) -> None:
        """A limit was raised: workers whose pools are smaller shall grow."""
        with self._lock:
            self._grow = True
        self._duty.wake()

    def _send(self) -> None:
        with self._lock:
            looks, self._looks = self._looks, {}
            grow, self._grow = self._grow, False
        try:
            for worker, task_ids in looks.items():
                ask_to_look(task_ids, worker)
        except Exception as error:
            _log.debug("a nudge to look was lost: %r", error)
        if grow:
            try:
                ask_to_grow()
            except Exception as error:
                _log.debug("workers could not be asked to grow yet: %r", error)
                with self._lock:
                    self._grow = True  # tried again at the next turn
