"""The one reader of a process: reads what changed for the jobs that somebody watches and hands it to the hub.

It reads at once when a hint names a watched job, otherwise whenever the smallest poll_interval has passed, and every
few seconds it reads all watched rows again, so that nothing depends on a hint or a mark. No stream reads by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from celery_jobs.api.stream.hub import Hub
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import StreamRow

logger = logging.getLogger(__name__)

REREAD_SECONDS = 5.0
SHORTEST_LOOK_SECONDS = 0.02  # a smaller poll_interval is accepted, and hints push anyway
HINTS_GATHER_SECONDS = 0.005
LONGEST_BACK_OFF_SECONDS = 5.0


class RowSource(Protocol):
    """What the feed needs of a scheduler."""

    async def rows(self, ids: Collection[JobId]) -> Mapping[JobId, StreamRow]:
        """The rows of these jobs; unknown ones are absent."""
        ...

    async def changed_since(self, mark: Any, ids: Collection[JobId]) -> tuple[Collection[StreamRow], Any]:
        """The rows among `ids` written since `mark`, and the mark for the next look; None gives the mark only."""
        ...

    def on_hint(self, callback: Callable[[set[JobId]], None]) -> None:
        """Call back, from any thread, with jobs that changed."""
        ...


class Feed:
    """Reads for all streams of this process; `run` it as one task for as long as the service lives."""

    def __init__(self, source: RowSource, hub: Hub) -> None:
        self._source = source
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._hinted: set[JobId] = set()
        self._mark: Any = None
        self._looked = 0.0  # when the feed last read by itself, and when it last read everything
        self._reread = 0.0
        self._failures = 0
        hub.on_change(self._woken.set)
        source.on_hint(self._on_hint)

    async def run(self) -> None:
        """Read for ever; an outage of the database only delays what the streams say."""
        while True:
            await self._rest()
            try:
                await self._look()
                self._failures = 0
            except Exception as error:
                await self._back_off(error)

    def _on_hint(self, ids: Collection[JobId]) -> None:
        watched = {job_id for job_id in ids if self._hub.watches(job_id)}
        if watched:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody watches any more
                self._loop.call_soon_threadsafe(self._take_hint, watched)

    def _take_hint(self, ids: set[JobId]) -> None:
        self._hinted |= ids
        self._woken.set()

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._rest_until()):
                await self._woken.wait()
        self._woken.clear()

    def _rest_until(self) -> float | None:
        """When the next read is due by itself; None while nobody watches."""
        return min(self._look_at(), self._reread_at()) if self._hub.open_streams() else None

    def _look_at(self) -> float:
        return self._looked + max(self._hub.shortest_interval(), SHORTEST_LOOK_SECONDS)

    def _reread_at(self) -> float:
        return self._reread + REREAD_SECONDS

    async def _look(self) -> None:
        watched = self._hub.watched()
        hinted, self._hinted = self._hinted & watched, set()
        if not watched:
            self._mark = None
            return
        now = self._loop.time()
        if self._mark is None or now >= self._reread_at():
            self._looked = self._reread = now
            self._hub.take_fresh()
            await self._read_everything(watched)
        elif now >= self._look_at():
            self._looked = now
            await self._read_changes(watched, hinted | self._hub.take_fresh())
        elif hinted:
            # hints that come meanwhile share the next read; the pause leaves the loop to others when there are many
            await self._read(hinted)
            await asyncio.sleep(min(self._loop.time() - now, HINTS_GATHER_SECONDS))

    async def _read_everything(self, watched: set[JobId]) -> None:
        # the mark comes first: what is written after it and before the read is seen twice, never missed
        _, mark = await self._source.changed_since(None, ())
        await self._read(watched)
        self._mark = mark

    async def _read_changes(self, watched: set[JobId], certainly: set[JobId]) -> None:
        rows, mark = await self._source.changed_since(self._mark, watched)
        for row in rows:
            self._hub.publish(row)
        # a job whose first watcher came after the last look may have changed before this mark
        await self._read(certainly)
        self._mark = mark

    async def _read(self, ids: set[JobId]) -> None:
        if not ids:
            return
        found = await self._source.rows(ids)
        for job_id in ids:
            if job_id in found:
                self._hub.publish(found[job_id])
            else:
                self._hub.vanish(job_id)

    async def _back_off(self, error: Exception) -> None:
        if not self._failures:
            fault = None if isinstance(error, DatabaseUnavailable) else error
            logger.warning("streams cannot read the records and will catch up: %s", error, exc_info=fault)
        self._failures += 1
        self._mark = None  # everything is read again afterwards
        await asyncio.sleep(min(0.1 * 2 ** min(self._failures, 10), LONGEST_BACK_OFF_SECONDS))
