"""Jobs: what a submit takes and answers, lists and results."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, RootModel, StringConstraints

from celery_jobs.records.record import JobFilter, Progress, Ulid
from celery_jobs.records.states import CancelMode, JobStatus

Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_UNESCAPED_OFFSET = re.compile(r" (\d\d:?\d\d)$")
_DATE = re.compile(r"\d{4}-\d\d-\d\d\D")


def _rfc3339(text: str) -> str:
    if not _DATE.match(text):
        raise ValueError("write a time as RFC 3339 does, with an offset: 2026-01-31T12:00:00Z")  # no seconds since 1970
    return _UNESCAPED_OFFSET.sub(r"+\1", text)  # the plus of an offset that nobody escaped arrives as a space


Time = Annotated[AwareDatetime, BeforeValidator(_rfc3339)]


class SubmitQuery(BaseModel):
    """The query parameters of every submit."""

    model_config = ConfigDict(extra="forbid")

    priority: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Larger first, among the jobs of a queue that wait; 0 unless the task says.",
    )
    tag: list[Word] | None = Field(default=None, max_length=50, description="Repeat it for several tags.")
    run_at: Time | None = Field(default=None, description="Do not start before this time.")
    expires_in_seconds: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="A job that has not started by then is canceled, reason expired.",
    )


class Accepted(BaseModel):
    """The answer to a submit."""

    job_id: Ulid
    message: str = Field(description="The same in words, for people.")
    poll_url: str = Field(description="Where the record is.", examples=["/api/v1/jobs/01JQRS7X6ZJ8T3V5W7Y9A1B3C5"])
    stream_url: str = Field(
        description="Where its changes are told.", examples=["/api/v1/jobs/01JQRS7X6ZJ8T3V5W7Y9A1B3C5/$stream"]
    )


class FilterQuery(BaseModel):
    """Which jobs to show; a misspelt filter is an error and not a list of everything."""

    model_config = ConfigDict(extra="forbid")

    status_filter: JobStatus | None = Field(default=None, description="Jobs in this state.")
    task: Word | None = Field(default=None, description="Jobs of the task with this name.")
    queue: Word | None = Field(default=None, description="Jobs of this queue.")
    tag: list[Word] = Field(default=[], max_length=50, description="Repeat it: a job must have every one of them.")
    submitted_after: Time | None = Field(default=None, description="Jobs submitted later than this time.")
    submitted_before: Time | None = Field(default=None, description="Jobs submitted earlier than this time.")

    def chosen(self) -> JobFilter:
        """The same filter in the words of the record table."""
        return JobFilter(
            status=self.status_filter,
            task=self.task,
            queue=self.queue,
            tags=tuple(self.tag),
            submitted_after=self.submitted_after,
            submitted_before=self.submitted_before,
        )


class ListQuery(FilterQuery):
    """The filters of a list, and which part of it."""

    limit: int | None = Field(
        default=None, ge=1, le=1000, description="At most so many, and `Link` leads to the rest; without it: all."
    )
    cursor: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Where a page begins, from the `Link` of the one before.",
    )


class FollowQuery(FilterQuery):
    """The filters of the stream of all jobs, which has no parts."""

    poll_interval: float = Field(
        default=0.5,
        gt=0,
        le=60,
        allow_inf_nan=False,
        description="Seconds: the longest time that a change may go unseen.",
    )


class ListedJob(BaseModel):
    """A job as lists show it: the record without its traceback."""

    id: Ulid
    status: JobStatus
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    artifact_id: Ulid | None
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
    retry_of: Ulid | None
    celery_id: str | None
    run_at: datetime | None
    expires_at: datetime | None
    parent_id: str | None
    root_id: str | None
    links: dict[str, str]


class JobList(RootModel[list[ListedJob]]):
    """All jobs that fit, newest first."""


class Deleted(BaseModel):
    """What the stream of a job says at its end when the job was deleted."""

    status: Literal["deleted"]


class DeletedJob(Deleted):
    """What the stream of all jobs says of one that was deleted."""

    id: Ulid


class ResultView(BaseModel):
    """What came of a job."""

    job_id: Ulid
    status: JobStatus
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    result: Any = Field(description="What the task returned; null while the job is unfinished and when it failed.")
    error: str | None
