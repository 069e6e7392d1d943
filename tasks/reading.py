"""The reading half of the service: records, results, lists, and what streams and waits look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import cached_property

from celery_jobs.records import changes, reads
from celery_jobs.records.changes import Look, Mark
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobFilter, JobRecord, JobResult, StreamRow
from celery_jobs.records.store import AsyncStore
from celery_jobs.tasks import hooks
from celery_jobs.tasks.duties import Attached, Duties
from celery_jobs.tasks.hooks import Hooks

_PAGE = 100  # of a whole list
_LONGEST_REST_SECONDS = 0.02


class JobReader:
    """Reads for one event loop; every record is one of the class that the hooks name."""

    _async: AsyncStore

    @property
    def _running(self) -> Duties | Attached:
        raise NotImplementedError

    @cached_property
    def hooks(self) -> Hooks:
        """What a subclass adds to records and results."""
        return hooks.of(self)

    async def record(self, job_id: JobId) -> JobRecord:
        """The record of a job; JobNotFound."""
        return await self._async.read(reads.record, job_id, self.hooks.record_class)

    async def result(self, job_id: JobId) -> JobResult:
        """The record and the result of a job; JobNotFound."""
        return await self._async.read(reads.result, job_id, self.hooks.record_class)

    async def stream_records(self, chosen: JobFilter, below: int | None = None) -> AsyncIterator[Sequence[JobRecord]]:
        """All records that match, newest first, from `below` on; no connection is held between two of its pages."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            records, below = await self._async.read(reads.page, chosen, _PAGE, below, self.hooks.record_class)
            yield records
            if below is None:
                return
            # as long for all other calls of this loop as for the list
            await asyncio.sleep(min(loop.time() - began, _LONGEST_REST_SECONDS))

    async def page(
        self, chosen: JobFilter, limit: int, below: int | None = None
    ) -> tuple[Sequence[JobRecord], int | None]:
        """The newest `limit` records that match, submitted before `below`; and where the next page begins, if any."""
        loop = asyncio.get_running_loop()
        found: list[JobRecord] = []
        while True:
            began = loop.time()
            most = limit - len(found)
            records, below = await self._async.read(reads.page, chosen, most, below, self.hooks.record_class)
            found += records
            if below is None or len(found) == limit:
                return found, below
            await asyncio.sleep(loop.time() - began)  # a filter that fits few reads on, and leaves others their turn

    # --- what streams read

    async def rows(self, ids: Collection[JobId]) -> dict[JobId, StreamRow]:
        """The rows of these jobs; unknown ones are absent, deleted ones say so."""
        return await self._async.read(reads.stream_rows, ids, self.hooks.record_class)

    async def changed_since(self, mark: int | None, ids: Collection[JobId]) -> tuple[list[StreamRow], int]:
        """What changed among `ids` since the mark, and the next mark; without a mark only the present one."""
        if mark is None:
            return [], await self._async.read(changes.mark_now)
        return await self._async.read(changes.changed_since, mark, ids, self.hooks.record_class)

    async def everything_seen(self) -> Mark:
        """The mark of a look at all jobs now."""
        return await self._async.read(changes.everything_seen)

    async def everything_since(self, mark: Mark, after: tuple[int, int] | None, until: int | None, most: int) -> Look:
        """The rows of all jobs written since a look with this mark, in order; `after` and `until` bound them."""
        model = self.hooks.record_class
        return await self._async.read(changes.everything_since, mark, after, until, most, model)

    def on_hint(self, callback: Callable[[set[JobId]], None]) -> None:
        """Call back with the ids that changed, from any thread; a hint may be lost."""
        self._running.hints.listen(callback)
