"""Lists of a scheduler's jobs: newest first, and every job has a place that later ones do not move. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from celery_jobs.records.record import JobFilter, JobRecord

PLACES: Final = 10**60  # more than there are
_BEGINNING: Final = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def place_of(record: JobRecord) -> int:
    """Larger for jobs that came later: the time of the submit, then the id, where clocks are coarse."""
    return ((record.submitted_at - _BEGINNING) // _MICROSECOND << 128) + int(record.id)


def newest_first(records: Iterable[JobRecord], chosen: JobFilter, below: int | None) -> list[JobRecord]:
    """The records that fit, from the place `below` on."""
    fitting = (record for record in records if chosen.fits(record))
    placed = sorted(((place_of(record), record) for record in fitting), key=lambda each: each[0], reverse=True)
    return [record for place, record in placed if below is None or place < below]
