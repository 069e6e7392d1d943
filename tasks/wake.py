"""Waking the dispatcher when a job has ended: Celery tells a worker's main process of results only through the pool."""

from __future__ import annotations

from typing import Any

from celery_jobs.tasks.dispatch import Dispatcher


def wake_after_each_job(pool: Any, dispatcher: Dispatcher) -> None:
    """Let the pool's own callback wake the dispatcher too; call before the consumer starts."""
    apply_async = pool.apply_async

    def apply_and_wake(*args: Any, callback: Any = None, **kwargs: Any) -> Any:
        def called_back(*results: Any) -> Any:
            try:
                return callback(*results) if callback is not None else None
            finally:
                dispatcher.wake()

        return apply_async(*args, callback=called_back, **kwargs)

    pool.apply_async = apply_and_wake
