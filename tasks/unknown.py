"""Messages of tasks that this worker does not know: given back while another one knows them, else the job fails.

In a rolling deployment old workers meet the messages of new tasks (contract, section 2).
"""

from __future__ import annotations

import logging
import queue

from celery_jobs.records import unknown
from celery_jobs.records.ids import JobId
from celery_jobs.records.unknown import Fate
from celery_jobs.tasks import metrics, process
from celery_jobs.tasks.duty import Duty

_AGAIN_SECONDS = 5.0
_log = logging.getLogger("celery_jobs.unknown")


class UnknownTasks:
    """Settles them in the background: they are met on the consumer's loop, which never waits for a database."""

    def __init__(self) -> None:
        self._met: queue.SimpleQueue[tuple[JobId, int]] = queue.SimpleQueue()
        self._duty: Duty | None = None

    def meet(self, job_id: JobId, attempt: int) -> None:
        """The message of this attempt came, and its task is not here."""
        self._met.put((job_id, attempt))
        if self._duty is None:
            self._duty = Duty("unknown-tasks", self._settle_all, _AGAIN_SECONDS)
            self._duty.start()
        self._duty.wake()

    def _settle_all(self) -> None:
        while not self._met.empty():
            met = self._met.get()
            try:
                self._settle(*met)
            except process.ServiceEnded:
                return
            except Exception:
                self._met.put(met)
                raise

    def _settle(self, job_id: JobId, attempt: int) -> None:
        here = process.current()
        # given back, it is not sent again at once: this worker may be the first to take it again
        if here.store.write(unknown.settle, job_id, attempt) is Fate.failed:
            _log.error("job %s failed: no live worker of its queue knows its task", job_id)
            here.hints.changed(job_id)
            metrics.closed(here.store, [job_id])


unknown_tasks = UnknownTasks()
