"""Where a follower of all jobs stands: the watermark that is its event id, and what it was told of each job. Pure.

A row tells its last change only. Which statuses of it are news follows from what was told of the job before or, where
that is not known, from the changes that brought them.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final, NamedTuple

from celery_jobs.api.stream.frame import Key, Step, key_of, position_at, steps_after
from celery_jobs.records.changes import Changed, Mark
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import JobStatus

_MOST_OPEN: Final = 50  # an id stays short; a rougher mark repeats some events and loses none
_MARK = r"([0-9]{1,18})(?:_([0-9]{1,18}))?((?:\.[0-9]{1,18}){0,50})"
_WATERMARK = re.compile(f"{_MARK}(?:-{_MARK})?")
_ENDED_BY_ITSELF: Final = (JobStatus.completed, JobStatus.failed)


class Watermark(NamedTuple):
    """How far a stream of all jobs has come: it has read the jobs that changed below `mark`, and in a row that has
    changed since, the statuses below `told` are no news. They differ while it is within a look or catches up, since a
    job that changes before its turn comes leaves the order in which jobs are read.
    """

    mark: Mark
    told: Mark

    @property
    def level(self) -> bool:
        """Everything that a look could see is told."""
        return self.mark == self.told

    def __str__(self) -> str:
        """The event id: `<mark>`, or `<mark>-<told>` where they differ; a mark is `high[_seq][.open…]`."""
        mark, told = _short(self.mark), _short(self.told)
        if mark is not self.mark and told.high > mark.high:  # the rougher of both
            told = mark
        return "-".join(dict.fromkeys((_text(mark), _text(told))))


def parse_watermark(text: str | None) -> Watermark | None:
    """The watermark that a `Last-Event-ID` spells; None for anything that is none."""
    match = _WATERMARK.fullmatch(text or "")
    if match is None:
        return None
    mark = _parsed(match[1], match[2], match[3])
    told = mark if match[4] is None else _parsed(match[4], match[5], match[6])
    return None if mark is None or told is None or told.high > mark.high else Watermark(mark, told)


def _short(mark: Mark) -> Mark:
    return mark if len(mark.open) <= _MOST_OPEN else Mark(mark.low)


def _text(mark: Mark) -> str:
    return f"{mark.high}{f'_{mark.seq}' if mark.seq else ''}{''.join(f'.{each}' for each in mark.open)}"


def _parsed(high: str, seq: str | None, still_open: str) -> Mark | None:
    transactions = [int(each) for each in still_open.split(".")[1:]]
    if transactions != sorted({*transactions}) or any(each >= int(high) for each in transactions):
        return None
    return Mark(int(high), tuple(transactions), int(seq or 0))


class Place(NamedTuple):
    """What was told of a job last."""

    version: int
    key: Key


class Positions:
    """What was told of each job: exact for the `most` jobs that changed last, by their changes for all others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._told: OrderedDict[JobId, Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._told

    def __getitem__(self, job_id: JobId) -> Place:
        return self._told[job_id]

    def keep(self, job_id: JobId, place: Place) -> None:
        """This was told of the job."""
        self._told[job_id] = place
        self._told.move_to_end(job_id)
        if len(self._told) > self._most:
            self._told.popitem(last=False)

    def limit(self, most: int) -> None:
        """From now on remember so many."""
        self._most = most
        while len(self._told) > most:
            self._told.popitem(last=False)

    def advance(self, changed: Changed, told: Mark) -> list[Step]:
        """The news that a row brings, which are told from now on; a row that is not newer than another brings none."""
        row = changed.row
        known = self._told.get(row.id)
        if known is not None and row.version <= known.version:
            return []
        self.keep(row.id, Place(row.version, key_of(row)))
        position = position_at(changed, told) if known is None else known.key
        return steps_after(row, position, ended_before=_ended_before(changed))


def _ended_before(changed: Changed) -> bool:
    """Whether a deleted job had ended before; what the deletion itself cancels has the same change."""
    finished = changed.entered.finished
    return changed.row.status in _ENDED_BY_ITSELF or finished not in (None, changed.change)
