"""Messages of tasks that this worker does not know: given back while another one knows them, else the job fails.

In a rolling deployment old workers meet the messages of new tasks (contract, section 2).
"""

from __future__ import annotations

import queue
from typing import Any

from celery import signals

from celery_jobs.records import runs, workers
from celery_jobs.records.ids import JobId, job_id_of
from celery_jobs.records.store import Store
from celery_jobs.tasks import metrics
from celery_jobs.tasks.duty import Duty
from celery_jobs.tasks.execute import ATTEMPT_HEADER
from celery_jobs.tasks.failures import one_line
from celery_jobs.tasks.hints import Hints

_AGAIN_SECONDS = 5.0


class UnknownTasks:
    """Settles them in the background: the signal comes on the consumer's loop, which never waits for a database."""

    def __init__(self, store: Store, hints: Hints) -> None:
        self._store = store
        self._hints = hints
        self._met: queue.SimpleQueue[tuple[JobId, int, str]] = queue.SimpleQueue()
        self._duty = Duty("unknown-tasks", self._settle_all, _AGAIN_SECONDS)

    def start(self) -> None:
        """Begin."""
        signals.task_unknown.connect(self._meet, weak=False, dispatch_uid=f"celery_jobs.unknown.{id(self)}")
        self._duty.start()

    @property
    def duties(self) -> tuple[Duty, ...]:
        """What runs in the background."""
        return (self._duty,)

    def stop(self) -> None:
        """Hear of no more."""
        signals.task_unknown.disconnect(dispatch_uid=f"celery_jobs.unknown.{id(self)}")

    def _meet(self, message: Any = None, name: str = "", id: str = "", **_: Any) -> None:
        attempt = (getattr(message, "headers", None) or {}).get(ATTEMPT_HEADER)
        if attempt is not None:  # what others publish is not ours to end
            self._met.put((job_id_of(id), int(attempt), name))
            self._duty.wake()

    def _settle_all(self) -> None:
        while not self._met.empty():
            met = self._met.get()
            try:
                self._settle(*met)
            except Exception:
                self._met.put(met)
                raise

    def _settle(self, job_id: JobId, attempt: int, task: str) -> None:
        if self._store.read(workers.known_elsewhere, job_id):
            # not sent again at once: this worker may be the first to take it again
            runs.undispatch(self._store, job_id, attempt)
            return
        error = one_line(f"TaskUnknown: no worker of the job's queue knows the task {task!r}")
        if runs.fail_unstarted(self._store, job_id, attempt, error):
            self._hints.changed(job_id)
            metrics.closed(self._store, [job_id])
