"""Growing the pools: a queue's limit may be higher than what its workers can run at once (contract, section 5).

Never the other way: a pool that shrinks under load can fall to no process at all, and the limit in SQL is exact anyhow.
The consumer's loop only grows the pool; what is read and written for that is a thread's, since a database that is
silent must not stop the loop.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery.worker.control import control_command

from celery_jobs.records import workers
from celery_jobs.tasks import process
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.duty import Duty
from celery_jobs.tasks.pool import GrowingThreadPool
from celery_jobs.tasks.worker import most_slots

GROW = "celery_jobs_grow"
LOOKS_PER_TIMEOUT = 10
_log = logging.getLogger("celery_jobs.growth")


@control_command(name=GROW, visible=False)
def grow(state: Any, **_: Any) -> dict[str, bool]:
    """Look at the limits of this worker's queues and grow the pool to its share of what is missing."""
    if _growth is not None:
        _growth.look()
    return {"looks": _growth is not None}


def ask_to_grow() -> None:
    """Tell every worker that a limit was raised; raises when the broker is away."""
    app.control.broadcast(GROW)


def consumer_ready(consumer: Any) -> None:
    """Limits that were raised before this worker started grow its pool too."""
    if _growth is not None:
        _growth.ready(consumer)


class Growth:
    """Grows this worker's pool to its share of the limits when told to, as far as the pool goes.

    What a queue's workers still lack after a whole worker timeout is filled too: one did not hear, had no room, or
    died. Not sooner, since a worker that restarts is back by then and would find its place taken.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._consumer: Any = None
        self._asked = False
        self._ordered_at: float | None = None  # until the record says how far the pool has grown
        self._grown = 0
        self._missing_since: float | None = None
        self._duty = Duty("growth", self._look, timeout_seconds / LOOKS_PER_TIMEOUT)

    @property
    def duties(self) -> tuple[Duty, ...]:
        """What runs in the background."""
        return (self._duty,)

    def start(self) -> None:
        """Begin to look, once the consumer is ready."""
        global _growth
        _growth = self
        self._duty.start()

    def ready(self, consumer: Any) -> None:
        """This consumer's loop runs now."""
        self._consumer = consumer
        self.look()

    def look(self) -> None:
        """Look at the limits soon."""
        self._asked = True
        self._duty.wake()

    def _look(self) -> None:
        if self._consumer is None:
            return
        here, pool = process.current(), self._consumer.pool
        if self._grown:
            here.store.write(workers.set_slots, here.incarnation, _slots(pool))
            _log.info("the pool has grown by %d to %d slots", self._grown, _slots(pool))
            self._grown, self._ordered_at = 0, None
        now = time.monotonic()
        if self._ordered_at is not None and now - self._ordered_at < self._timeout_seconds:
            return
        asked, lasting = self._asked, self._lacks_for_long(now)
        if asked or lasting:
            missing = here.store.read(workers.missing_slots, here.incarnation, lasting=lasting)
            self._asked = False
            kind = "threads" if isinstance(pool, GrowingThreadPool) else "prefork"
            more = min(missing, most_slots(here.settings, kind) - _slots(pool))
            if more > 0:
                self._ordered_at = now
                self._order(more)

    def _lacks_for_long(self, now: float) -> bool:
        here = process.current()
        if not here.store.read(workers.missing_slots, here.incarnation, lasting=True):
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= self._timeout_seconds:
            self._missing_since = None
            return True
        return False

    def _order(self, more: int) -> None:
        if isinstance(self._consumer.pool, GrowingThreadPool):  # any thread may
            self._grow(more)
        else:
            self._consumer.call_soon(self._grow, more)

    def _grow(self, more: int) -> None:
        pool = self._consumer.pool
        try:
            pool.grow(more)
            if hasattr(pool, "maintain_pool"):
                pool.maintain_pool()  # otherwise new processes start with the next look of the pool, seconds later
            self._consumer._update_prefetch_count(more)
        except Exception as error:  # it would end the consumer's loop
            _log.warning("the pool did not grow to the limits: %r", error)
        else:
            self._grown = more
        self._duty.wake()


_growth: Growth | None = None


def _slots(pool: Any) -> int:
    return int(pool.num_processes)
