"""A job as a test sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ulid import ULID

from celery_jobs.records.record import JobRecord, Progress
from celery_jobs.records.states import JobStatus
from celery_jobs.testing.history import history_of

if TYPE_CHECKING:
    from celery_jobs.testing.service import JobsService


class Job:
    """A job of `jobs_service`. Everything is read from its record when it is asked for; KeyError once it is deleted."""

    def __init__(self, service: JobsService, job_id: ULID) -> None:
        self.service = service
        self.id = job_id

    @property
    def record(self) -> JobRecord:
        """All that is known of it, as the class that the scheduler's `_make_record` returns."""
        return self.service.record(self.id)

    @property
    def status(self) -> JobStatus:
        """Where it is now; equal to the word, `job.status == "running"`."""
        return self.record.status

    @property
    def history(self) -> list[JobStatus]:
        """Every status so far in order, also those that lasted a moment: pending, running, pending, running, failed."""
        return history_of(self.service.row(self.id))

    @property
    def result(self) -> Any:
        """What it returned, as JSON has it; RuntimeError if it failed, was canceled or has not ended."""
        return self.service.result(self.id)

    @property
    def error(self) -> str | None:
        """`ExceptionType: message`, or why the system ended it."""
        return self.record.error

    @property
    def traceback(self) -> str | None:
        """Where it was raised."""
        return self.record.error_traceback

    @property
    def progress(self) -> Progress | None:
        """The newest that it has said."""
        return self.record.progress

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        try:
            record = self.record
        except Exception:
            return f"<Job {self.id}>"
        return f"<Job {self.id} {record.task} {record.status}>"


def wait_for(job: Job, status: str = "completed", timeout: float = 10.0) -> Job:
    """Return the job when it has reached `status`, at once where it already had.

    AssertionError, which shows the job, when it has ended in another way or after `timeout` seconds. ValueError for a
    word that is no status.
    """
    __tracebackhide__ = True
    return job.service.wait_for(job, status, timeout)
