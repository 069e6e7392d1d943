"""What a worker's main process knows of a message that it has given to its pool."""

from __future__ import annotations

from typing import Any

from celery.exceptions import TimeLimitExceeded
from celery.worker.request import Request

from celery_jobs.records.ids import JobId, job_id_of
from celery_jobs.tasks.time_limits import words

# job and reason by the process that the pool ends for it; only the look at the children closes the run, when it is gone
exceeded: dict[int, tuple[JobId, str]] = {}


class JobRequest(Request):
    """Celery's, which also remembers why the pool ends a process."""

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """A time limit has passed; the process still lives."""
        if not soft and self.worker_pid is not None:
            reason = f"{TimeLimitExceeded.__name__}: {words('hard', timeout)}"
            exceeded[self.worker_pid] = job_id_of(self.id), reason
        return super().on_timeout(soft, timeout)
