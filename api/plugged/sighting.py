"""What streams make of a record that a scheduler shows: a row, and what was seen of the job before. Pure.

A scheduler shows what is, and streams tell what was passed: the row keeps that a job was `canceling`, or waited again,
and counts attempts where the scheduler does not, since the id of an event must never go back (stream/frame.py).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from celery_jobs.records.changes import Entered
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobRecord, StreamRow
from celery_jobs.records.states import EXECUTING, TERMINAL, CancelMode, JobStatus

_NOWHERE = Entered(None, None, None, None, None)


class Sighting(NamedTuple):
    """A job as it was seen last, and which changes brought its statuses; None where it was so at the first look."""

    row: StreamRow
    entered: Entered = _NOWHERE


def same(record: JobRecord, before: Sighting) -> bool:
    """Whether the record shows nothing new; a job that has ended does not change any more."""
    row = before.row
    return not row.deleted and ((row.status in TERMINAL and record.status is row.status) or record == row.record)


def sight(record: JobRecord, before: Sighting | None, change: int, *, new: bool = False) -> Sighting:
    """The job as this record shows it, in a look of its own; `new`: it was submitted since the look before."""
    row = _row(record, None if before is None else before.row, change)
    if before is None and not new:
        return Sighting(row)
    was, had = (None, _NOWHERE) if before is None else before

    def came(now: object, already: object, brought: int | None) -> int | None:
        return brought if already else (change if now else None)

    going_on = was if was is not None and was.attempt == row.attempt else None
    entered = Entered(
        submitted=change if was is None else had.submitted,
        started=came(row.attempt, going_on and going_on.attempt, had.started),
        requeued=came(row.requeued_at, going_on and going_on.requeued_at, had.requeued),
        canceling=came(row.canceling_at, going_on and going_on.canceling_at, had.canceling),
        finished=came(row.status in TERMINAL, going_on and going_on.status in TERMINAL, had.finished),
    )
    return Sighting(row, entered)


def gone(before: Sighting, change: int) -> Sighting:
    """The job has been deleted."""
    return before._replace(row=replace(before.row, deleted=True, version=change))


def _row(record: JobRecord, before: StreamRow | None, change: int) -> StreamRow:
    attempt = _attempt(record, before)
    going_on = before if before is not None and before.attempt == attempt else None
    return StreamRow(
        id=JobId(str(record.id)),
        status=record.status,
        attempt=attempt,
        version=change,
        progress_seq=_progress(record, going_on),
        canceling_at=_canceling_at(record, going_on),
        requeued_at=_requeued_at(record, attempt, going_on),
        started_at=record.started_at,
        deleted=False,
        record=record.model_copy(deep=True),  # the scheduler's own may be the live one
    )


def _attempt(record: JobRecord, before: StreamRow | None) -> int:
    ran = record.started_at is not None or record.status in EXECUTING or record.status is JobStatus.completed
    counted = max(record.attempt, 1) if ran else 0
    if before is None:
        return counted
    waited = before.status is JobStatus.pending and before.attempt > 0
    begins = record.status in EXECUTING or record.status is JobStatus.completed
    again = (waited and begins) or (before.status in TERMINAL and record.status not in TERMINAL)
    return max(counted, before.attempt + again)


def _progress(record: JobRecord, before: StreamRow | None) -> int:
    """Whatever changes in the record of a job that runs is told like progress."""
    if before is None:
        return int(record.progress is not None)
    return before.progress_seq + (record.status in EXECUTING and record.status is before.status)


def _canceling_at(record: JobRecord, before: StreamRow | None) -> datetime | None:
    if before is not None and before.canceling_at is not None:
        return before.canceling_at
    waited = record.status is JobStatus.canceled and record.cancel_mode is CancelMode.wait and record.started_at
    if record.status is not JobStatus.canceling and not waited:
        return None
    return record.cancel_requested_at or datetime.now(UTC)


def _requeued_at(record: JobRecord, attempt: int, before: StreamRow | None) -> datetime | None:
    if before is not None and before.requeued_at is not None:
        return before.requeued_at
    return datetime.now(UTC) if record.status is JobStatus.pending and attempt else None
