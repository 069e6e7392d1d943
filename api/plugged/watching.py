"""What streams read of a scheduler that announces nothing: its records, looked at again and again.

Each change that a look finds gets a number, the row's version. They begin at the time of day, so that the ids in
streams of all jobs go on where they ended when the process is another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Final

from celery_jobs.api.plugged.sighting import Sighting, gone, same, sight
from celery_jobs.api.plugged.surface import Surface
from celery_jobs.records.changes import Changed, Look, Mark
from celery_jobs.records.errors import JobNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobRecord, StreamRow

_log = logging.getLogger("celery_jobs.plugged")
_ASKED_AT_ONCE: Final = 50
_LONGEST_LOOK_SECONDS: Final = 2.0
_KEPT_SECONDS: Final = 60.0  # longer than any stream leaves a job that it watches unread
_MANY: Final = 1_000
_SEQ: Final = 1  # a change here is that of one job, so nothing needs an order within it


class Numbers:
    """The numbers of changes, each given once."""

    def __init__(self) -> None:
        self.last = time.time_ns() // 1000

    def next(self) -> int:
        """The number of a change that was just found."""
        self.last += 1
        return self.last


class WatchedJobs:
    """The jobs that somebody watches, each by itself."""

    def __init__(self, surface: Surface, numbers: Numbers) -> None:
        self._surface = surface
        self._numbers = numbers
        self._seen: dict[JobId, Sighting] = {}
        self._looked: dict[JobId, float] = {}
        self._many = _MANY
        self._turn = asyncio.Lock()  # or an older answer could come after a newer one

    async def rows(self, ids: Collection[JobId]) -> dict[JobId, StreamRow]:
        """The rows of these jobs; unknown ones are absent."""
        await self._look(ids)
        return {job_id: self._seen[job_id].row for job_id in ids if job_id in self._seen}

    async def changed_since(self, mark: int | None, ids: Collection[JobId]) -> tuple[list[StreamRow], int]:
        """The rows among `ids` in which a look found something since the mark, and the next mark."""
        following = self._numbers.last + 1
        if mark is None:
            return [], following
        rows = await self.rows(ids)
        return [row for row in rows.values() if row.version >= mark], following

    async def _look(self, ids: Collection[JobId]) -> None:
        async with self._turn:
            wanted = list(ids)
            for start in range(0, len(wanted), _ASKED_AT_ONCE):
                part = wanted[start : start + _ASKED_AT_ONCE]
                for job_id, record in zip(part, await asyncio.gather(*map(self._record, part)), strict=True):
                    self._see(job_id, record)
            self._forget_old()

    async def _record(self, job_id: JobId) -> JobRecord | None:
        """None where it is gone; what cannot be seen now is as it was, and no other job's stream waits for it."""
        try:
            async with asyncio.timeout(_LONGEST_LOOK_SECONDS):
                return await self._surface.record(job_id)
        except JobNotFound:
            return None
        except Exception as error:
            before = self._seen.get(job_id)
            if before is None:
                raise
            _log.warning("job %s cannot be looked at: %r", job_id, error)
            return before.row.record

    def _see(self, job_id: JobId, record: JobRecord | None) -> None:
        before = self._seen.get(job_id)
        if record is None:
            if before is not None and not before.row.deleted:
                self._seen[job_id] = gone(before, self._numbers.next())
            return
        self._looked[job_id] = time.monotonic()
        if before is None or not same(record, before):
            self._seen[job_id] = sight(record, before, self._numbers.next())

    def _forget_old(self) -> None:
        """Those who watch read a job every few seconds, so what was not read for a while is watched by nobody."""
        if len(self._seen) > self._many:
            oldest = time.monotonic() - _KEPT_SECONDS
            for job_id in [each for each, looked in self._looked.items() if looked < oldest]:
                del self._seen[job_id], self._looked[job_id]
            self._many = max(_MANY, 2 * len(self._seen))


class EveryJob:
    """All jobs, for those who follow all of them; nothing is read or kept before somebody does."""

    def __init__(self, surface: Surface, numbers: Numbers) -> None:
        self._surface = surface
        self._numbers = numbers
        self._seen: dict[JobId, Sighting] = {}
        self._deleted: dict[JobId, float] = {}
        self._begun = False
        self._turn = asyncio.Lock()

    async def seen(self) -> Mark:
        """The mark of a look now."""
        await self._look()
        return Mark(self._numbers.last + 1)

    async def since(self, mark: Mark, after: tuple[int, int] | None, until: int | None, most: int) -> Look:
        """At most `most` rows that changed since a look with this mark, in order; `after` and `until` bound them."""
        await self._look()
        start = max((mark.high, mark.seq), after or (0, 0))
        end = self._numbers.last + 1 if until is None else until
        later = [each for each in self._seen.values() if start < (each.row.version, _SEQ) and each.row.version < end]
        later.sort(key=lambda each: each.row.version)
        found = [Changed(each.row.version, _SEQ, each.row, each.entered) for each in later[:most]]
        return Look(found, Mark(self._numbers.last + 1))

    async def _look(self) -> None:
        async with self._turn:
            records = {JobId(str(record.id)): record for record in await self._surface.records()}
            for job_id, record in records.items():
                before = self._seen.get(job_id)
                if before is None or not same(record, before):
                    self._seen[job_id] = sight(record, before, self._numbers.next(), new=self._begun)
                    self._deleted.pop(job_id, None)
            self._miss(records)
            self._begun = True

    def _miss(self, records: Collection[JobId]) -> None:
        now = time.monotonic()
        for job_id in self._seen.keys() - records - self._deleted.keys():
            self._seen[job_id] = gone(self._seen[job_id], self._numbers.next())
            self._deleted[job_id] = now
        for job_id in [each for each, since in self._deleted.items() if since < now - _KEPT_SECONDS]:
            del self._seen[job_id], self._deleted[job_id]
