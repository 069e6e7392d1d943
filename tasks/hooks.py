"""The hooks of a scheduler's subclass: the record it makes, and what it does with a result (contract, section 6).

The record is made where a job is submitted. The result is told where the job ran, on its live record, before
`completed` is visible to anybody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ulid import ULID

from celery_jobs.records.ids import new_job_id, ulid_of
from celery_jobs.records.record import JobRecord, checked, extra_json
from celery_jobs.records.submit import NewJob

MakeRecord = Callable[[ULID, datetime], JobRecord]
OnResult = Callable[[JobRecord, Any], Awaitable[None]]


@dataclass
class Hooks:
    """What of a scheduler is its subclass's own; by default nothing is."""

    make_record: MakeRecord | None = None
    on_result: OnResult | None = None
    record_class: type[JobRecord] = JobRecord

    def recorded(self, job: NewJob) -> NewJob:
        """The job with what its record shall hold besides; TypeError for a record that is none."""
        if self.make_record is None:
            return job
        job_id = ulid_of(job.id)
        record = made(self.make_record, job_id)
        if record.id != job_id:
            raise ValueError(f"_make_record must keep the id that it is given: {job_id}, not {record.id}")
        record = checked(record, "tags")
        tags = tuple(dict.fromkeys([*job.tags, *record.tags]))
        return replace(job, tags=tags, extra=extra_json(record))

    @property
    def name(self) -> str:
        """What the hook for results is called in messages."""
        return getattr(self.on_result, "__qualname__", "_on_job_result")


def of(scheduler: Any) -> Hooks:
    """The hooks of a CeleryScheduler; what its class leaves as it is costs nothing."""
    from celery_jobs.tasks.scheduler import CeleryScheduler

    hooks = Hooks()
    if _overrides(scheduler, CeleryScheduler, "_make_record"):
        make_record: MakeRecord = scheduler._make_record
        hooks.make_record = make_record
        hooks.record_class = type(made(make_record, ulid_of(new_job_id())))  # asked once; the class is the same for all
    if _overrides(scheduler, CeleryScheduler, "_on_job_result"):
        hooks.on_result = scheduler._on_job_result
    return hooks


def _overrides(scheduler: Any, base: type, name: str) -> bool:
    return getattr(type(scheduler), name) is not getattr(base, name)


def made(make_record: MakeRecord, job_id: ULID) -> JobRecord:
    """What the hook makes; TypeError where that is no record."""
    record: Any = make_record(job_id, datetime.now(UTC))
    if not isinstance(record, JobRecord):
        raise TypeError(f"_make_record must return a JobRecord, not {type(record).__name__}")
    return record
