"""Growing the pools: a queue's limit may be higher than what its workers can run at once (contract, section 5).

Never the other way: a pool that shrinks under load can fall to no process at all, and the limit in SQL is exact anyhow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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
def grow(state: Any, **_: Any) -> dict[str, int]:
    """Look at the limits of this worker's queues and grow the pool to its share of what is missing."""
    return {"grown": grow_pool(state.consumer)}


def grow_pool(consumer: Any, *, lasting: bool = False) -> int:
    """Grow to this worker's share of the limits, as far as its pool goes; how many slots more. Runs in the consumer."""
    here = process.current()
    pool = consumer.pool
    missing = here.store.read(workers.missing_slots, here.incarnation, lasting=lasting)
    kind = "threads" if isinstance(pool, GrowingThreadPool) else "prefork"
    more = min(missing, most_slots(here.settings, kind) - _slots(pool))
    if more <= 0:
        return 0
    pool.grow(more)
    if hasattr(pool, "maintain_pool"):
        pool.maintain_pool()  # otherwise new processes start with the next look of the pool, seconds later
    consumer._update_prefetch_count(more)
    here.store.write(workers.set_slots, here.incarnation, _slots(pool))
    _log.info("the pool has grown by %d to %d slots", more, _slots(pool))
    return more


def _slots(pool: Any) -> int:
    return int(pool.num_processes)


def ask_to_grow() -> None:
    """Tell every worker that a limit was raised; raises when the broker is away."""
    app.control.broadcast(GROW)


class LastingGrowth:
    """Fills what a queue's workers still lack after a whole worker timeout: one did not hear, had no room, or died.

    Not sooner, since a worker that restarts is back by then and would find its place taken.
    """

    def __init__(self, consumer: Callable[[], Any], timeout_seconds: float) -> None:
        self._consumer = consumer
        self._timeout_seconds = timeout_seconds
        self._missing_since: float | None = None
        self._duty = Duty("growth", self._look, timeout_seconds / LOOKS_PER_TIMEOUT)

    def start(self) -> None:
        """Begin to look."""
        self._duty.start()

    def stop(self) -> None:
        """End."""
        self._duty.stop()

    def _look(self) -> None:
        here = process.current()
        if not here.store.read(workers.missing_slots, here.incarnation, lasting=True):
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = time.monotonic()
        elif time.monotonic() - self._missing_since >= self._timeout_seconds:
            self._missing_since = None
            consumer = self._consumer()
            consumer.call_soon(self._grow, consumer)

    def _grow(self, consumer: Any) -> None:
        try:
            grow_pool(consumer, lasting=True)
        except Exception as error:  # it would end the consumer's loop
            _log.warning("the pool did not grow to the limits: %r", error)
