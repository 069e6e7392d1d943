"""Growing the pools: a queue's limit may be higher than what its workers can run at once (contract, section 5).

Never the other way: a pool that shrinks under load can fall to no process at all, and the limit in SQL is exact anyhow.
"""

from __future__ import annotations

import os
from typing import Any

from celery.worker.control import control_command

from celery_jobs.records import workers
from celery_jobs.tasks import process
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.pool import MOST_THREADS, GrowingThreadPool

GROW = "celery_jobs_grow"
PROCESSES_PER_CORE = 4


@control_command(name=GROW, visible=False)
def grow(state: Any, **_: Any) -> dict[str, int]:
    """Look at the limits of this worker's queues and grow the pool to its share of what is missing."""
    return {"grown": grow_pool(state.consumer)}


def grow_pool(consumer: Any) -> int:
    """Grow to this worker's share of the limits, as far as its pool goes; how many slots more. Runs in the consumer."""
    here = process.current()
    pool = consumer.pool
    missing = here.store.read(workers.missing_slots, here.incarnation)
    more = min(missing, _most_slots(pool) - pool.num_processes)
    if more <= 0:
        return 0
    pool.grow(more)
    if hasattr(pool, "maintain_pool"):
        pool.maintain_pool()  # otherwise new processes start with the next look of the pool, seconds later
    consumer._update_prefetch_count(more)
    here.store.write(workers.set_slots, here.incarnation, pool.num_processes)
    return more


def _most_slots(pool: Any) -> int:
    return MOST_THREADS if isinstance(pool, GrowingThreadPool) else PROCESSES_PER_CORE * (os.cpu_count() or 1)


def ask_to_grow() -> None:
    """Tell every worker that a limit was raised; raises when the broker is away."""
    app.control.broadcast(GROW)
