"""What a scrape of `/metrics` reads from SQL: the jobs by queue and status, and the live workers (contract, section 3).

However often somebody scrapes and however many jobs there are, this process spends at most a twentieth of its time on
counting: a count is kept for 20 times as long as it took (some 10 to 20 s at a million finished jobs).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from celery_jobs.records import census, workers
from celery_jobs.records.census import Counts
from celery_jobs.records.store import AsyncStore

T = TypeVar("T")

LOOK_SECONDS = 1.0
KEPT_FOR_ITS_TIME = 20


@dataclass(frozen=True, slots=True)
class Numbers:
    """Jobs by queue and status, and the live workers."""

    jobs: Counts
    workers: int


class _Kept(Generic[T]):
    """A number that is dear to find out: one look at a time for all who ask, and its outcome is kept for a while."""

    def __init__(self, count: Callable[[], Awaitable[T]]) -> None:
        self._count = count
        self._last: T | None = None
        self._keep_until = 0.0
        self._counting: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The newest number, once it is there; raises what the look raised."""
        if self._counting is not None and not self._counting.done():
            return await asyncio.shield(self._counting)
        if self._last is not None and time.monotonic() < self._keep_until:
            return self._last
        self._counting = asyncio.create_task(self._look())
        self._counting.add_done_callback(_forget)
        return await asyncio.shield(self._counting)

    @property
    def last(self) -> T | None:
        """The outcome of the last look; None before there was one."""
        return self._last

    def stop(self) -> None:
        """End the look under way."""
        if self._counting is not None:
            self._counting.cancel()

    async def _look(self) -> T:
        began = time.monotonic()
        self._last = await self._count()
        ended = time.monotonic()
        self._keep_until = ended + KEPT_FOR_ITS_TIME * (ended - began)
        return self._last


def _forget(counting: asyncio.Future[Any]) -> None:
    if not counting.cancelled():
        counting.exception()  # looked at, so that asyncio does not complain when everybody had gone


class Census:
    """The counts of this process."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._unfinished = _Kept(self._count_unfinished)
        self._finished = _Kept(self._count_finished)

    async def look(self) -> Numbers | None:
        """The numbers, within about a second; None when the database does not answer.

        Where counting the finished jobs takes longer, their last number stands, and none before the first is known.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LOOK_SECONDS
        finished = asyncio.ensure_future(self._finished.get())
        finished.add_done_callback(_forget)
        try:
            async with asyncio.timeout_at(deadline):
                live = await self._store.read(
                    workers.live_of_all_kinds
                )  # never kept: it says whether the database answers
                unfinished = await self._unfinished.get()
        except Exception:
            return None
        await asyncio.wait({finished}, timeout=max(0.0, deadline - loop.time()))
        jobs = unfinished.copy()
        jobs.update(self._finished.last or {})
        return Numbers(jobs, live)

    def stop(self) -> None:
        """End what is being counted; before the database is closed."""
        self._unfinished.stop()
        self._finished.stop()

    async def _count_unfinished(self) -> Counts:
        return await self._store.read(census.unfinished)

    async def _count_finished(self) -> Counts:
        total: Counts = Counter()
        after: int | None = None
        while True:
            part, after = await self._store.read(census.finished, after)
            total.update(part)
            if after is None:
                return total
