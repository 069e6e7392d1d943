"""Jobs: what a submit takes and answers, lists and results."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel, StringConstraints
from ulid import ULID

from celery_jobs.records.record import JobFilter, Progress
from celery_jobs.records.states import CancelMode, JobStatus

Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class SubmitOptions(BaseModel):
    """The query parameters of every submit."""

    model_config = ConfigDict(extra="forbid")

    priority: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Larger first, among the jobs of a queue that wait; 0 unless the task says.",
    )
    tag: list[Word] = Field(default=[], max_length=50, description="Repeat it for several tags.")


class Accepted(BaseModel):
    """The answer to a submit."""

    job_id: ULID
    message: str
    poll_url: str = Field(examples=["/api/v1/jobs/01JQRS7X6ZJ8T3V5W7Y9A1B3C5"])
    stream_url: str = Field(examples=["/api/v1/jobs/01JQRS7X6ZJ8T3V5W7Y9A1B3C5/$stream"])


class ListQuery(BaseModel):
    """The filters of a list; a misspelt one is an error and not a list of everything."""

    model_config = ConfigDict(extra="forbid")

    status_filter: JobStatus | None = None
    task: Word | None = None
    queue: Word | None = None
    submitted_after: AwareDatetime | None = None
    submitted_before: AwareDatetime | None = None

    def chosen(self) -> JobFilter:
        """The same filter in the words of the record table."""
        return JobFilter(
            status=self.status_filter,
            task=self.task,
            queue=self.queue,
            submitted_after=self.submitted_after,
            submitted_before=self.submitted_before,
        )


class ListedJob(BaseModel):
    """A job as lists show it: the record without its traceback."""

    id: ULID
    status: JobStatus
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    artifact_id: ULID | None
    task: str | None
    queue: str | None
    worker: str | None
    attempt: int
    progress: Progress | None
    priority: int
    tags: list[str]
    submitted_by: str | None
    cancel_requested_at: datetime | None
    cancel_mode: CancelMode | None
    retry_of: ULID | None
    celery_id: str | None
    run_at: datetime | None
    expires_at: datetime | None
    parent_id: str | None
    root_id: str | None
    links: dict[str, str]


class JobList(RootModel[list[ListedJob]]):
    """All jobs that fit, newest first."""


class ResultView(BaseModel):
    """What came of a job."""

    job_id: ULID
    status: JobStatus
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    result: Any = Field(description="What the task returned; null while the job is unfinished and when it failed.")
    error: str | None
