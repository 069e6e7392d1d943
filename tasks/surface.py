"""What any scheduler offers to Python callers (contract, section 6); `CeleryScheduler` is ours, others may serve."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ulid import ULID

from celery_jobs.records.ids import JobId, parse_job_id
from celery_jobs.records.record import JobRecord
from celery_jobs.records.states import JobStatus

AnyId = ULID | str


def id_of(job_id: AnyId) -> JobId:
    """The id, however it is spelled; InvalidJobId, which is a ValueError."""
    return parse_job_id(str(job_id))


class Scheduler(ABC):
    """Runs jobs and knows what became of them. An unknown id is a KeyError everywhere."""

    async def start(self) -> None:  # noqa: B027 — most implementations have nothing to begin
        """Called once, before the first request."""

    @abstractmethod
    async def add_job(self, target: Any, /, *args: Any, **kwargs: Any) -> ULID:
        """Take a job that calls `target`; its id. RuntimeError after `shutdown`."""

    @abstractmethod
    async def get_status(self, job_id: ULID) -> JobStatus:
        """Where the job is now."""

    @abstractmethod
    async def get_record(self, job_id: ULID) -> JobRecord:
        """All that is known of the job."""

    @abstractmethod
    async def get_all_records(self) -> Sequence[JobRecord]:
        """Every job, newest first."""

    @abstractmethod
    async def cancel(self, job_id: ULID) -> bool:
        """Ask for cancellation; False when the job has already finished."""

    @abstractmethod
    async def delete(self, job_id: ULID) -> None:
        """Cancel a job and remove its record at once."""

    @abstractmethod
    async def wait(self, job_id: ULID, timeout: float | None = None) -> None:
        """Return when the job has ended; TimeoutError after `timeout` seconds."""

    @abstractmethod
    async def get_result(self, job_id: ULID) -> Any:
        """What the job returned; RuntimeError when it failed, was canceled or has not finished."""

    @abstractmethod
    async def set_max_concurrency(self, max_concurrency: int | None) -> None:
        """At most so many jobs at once from now on, None for no limit; never interrupts one. ValueError below 1."""

    @abstractmethod
    async def shutdown(self, timeout: float | None = None) -> None:
        """Take no new jobs, let those that run finish for `timeout` seconds, then cancel what is left."""
