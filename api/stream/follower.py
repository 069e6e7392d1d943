"""One open stream of all jobs: it reads the log of the one reader and, when it was away or too slow, the database.

While it catches up it cannot rely on what the reader told others: jobs change before their turn comes. So it keeps
positions of its own until a look that began after its last page has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from starlette.responses import Response

from celery_jobs.api.stream.all_jobs import AllJobs, Joined
from celery_jobs.api.stream.batch import Batch, Told, chunks, sign_of_life
from celery_jobs.api.stream.position import Place, Positions, Watermark, parse_watermark
from celery_jobs.api.stream.response import SILENCE_SECONDS, EventStream
from celery_jobs.records.changes import Changed, Mark
from celery_jobs.records.errors import DatabaseUnavailable, ShuttingDown
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobFilter

_MOST_POSITIONS: Final = 10_000
_OUTAGE_PAUSE_SECONDS: Final = 1.0
_LEVEL_SECONDS: Final = 0.05


@dataclass(slots=True)
class _CatchUp:
    """Reading all that changed between a watermark and the look at which the stream joined."""

    since: Watermark
    joined: Joined | None
    deletions: bool  # told to a client that was slow, but not to one that was away
    after: tuple[int, int] | None = None


class Follower:
    """The frames of one stream of all jobs."""

    over = False  # it has no end of its own

    def __init__(self, all_jobs: AllJobs, chosen: JobFilter, poll_interval: float) -> None:
        self.place = 0
        self.poll_interval = poll_interval
        self._all = all_jobs
        self._chosen = chosen
        self._told = all_jobs.watermark
        self._catching_up: _CatchUp | None = None
        self._mine: Positions | None = None
        # what it has read since the reader was level with the database: where its own positions begin if it falls back
        most_pages = _MOST_POSITIONS // all_jobs.page_rows
        self._passed: deque[Sequence[tuple[JobId, Place]]] = deque(maxlen=most_pages)
        self._level_after = 0
        self._spoke = 0.0
        self._news, self._closed = asyncio.Event(), asyncio.Event()
        all_jobs.follow(self)

    async def begin(self, last_event_id: str | None) -> None:
        """Take a place in the log, behind all that has happened up to now. DatabaseUnavailable, ShuttingDown."""
        joined = await self._all.join()
        self.place, self._told = joined
        asked = parse_watermark(last_event_id)
        if asked is not None and asked.mark.high <= joined.watermark.mark.high:
            self._told = asked
            self._fall_back(joined, deletions=False)

    def wake(self) -> None:
        """There is something new in the log."""
        self._news.set()

    def stop(self) -> None:
        """End now."""
        self._closed.set()
        self._news.set()

    def close(self) -> None:
        """Leave the reader; doing it twice is fine."""
        self.stop()
        self._all.leave(self)

    async def frames(self) -> AsyncIterator[bytes]:
        """A sign of life at once, so that the headers go out with an id to resume from; then each change."""
        yield self._sign()
        while not self._closed.is_set():
            for chunk in await self._following():
                yield chunk
                self._spoke = _now()
                if self._closed.is_set():
                    return
            if _now() >= self._spoke + SILENCE_SECONDS:
                yield self._sign()

    async def _following(self) -> Iterable[bytes]:
        if self._catching_up is None and self._all.dropped(self.place):
            self._fall_back(None, deletions=True)
        if self._catching_up is not None:
            return await self._page(self._catching_up)
        batch = self._all.batch(self.place)
        if batch is None:
            self._be_level()
            await self._silence()
            return ()
        self.place += 1
        return self._live(batch)

    def _live(self, batch: Batch) -> Iterable[bytes]:
        if self._mine is None:
            self._told = batch.watermark
            self._remember(batch)
            return chunks(batch.fitting(self._chosen), self._told)
        own = [self._own(self._mine, each.changed, self._told.told) for each in batch.told]
        if batch.levels and batch.levels >= self._level_after:
            self._mine = None
            self._told = batch.watermark
        else:
            self._told = Watermark(batch.watermark.mark, self._told.told)
        return chunks([frame for frames in own for frame in frames], self._told)

    def _remember(self, batch: Batch) -> None:
        if batch.levels:
            self._passed.clear()
        else:
            self._passed.append(batch.places)

    def _own(self, mine: Positions, changed: Changed, told: Mark) -> list[bytes]:
        steps = mine.advance(changed, told)
        fits = self._chosen.fits(changed.row.record, any_status=True)  # most that do not are never written down
        return Told.of(changed, steps, self._all.written).fitting(self._chosen) if fits else []

    # --- catching up

    def _fall_back(self, joined: Joined | None, *, deletions: bool) -> None:
        self._catching_up = _CatchUp(self._told, joined, deletions)
        if self._mine is None:
            self._mine = Positions(_MOST_POSITIONS)
            for job_id, place in chain.from_iterable(self._passed):
                self._mine.keep(job_id, place)
            self._passed.clear()

    async def _page(self, at: _CatchUp) -> Iterable[bytes]:
        assert self._mine is not None
        try:
            if at.joined is None:
                at.joined = await self._all.join()
                self.place = at.joined.place
            newest = at.joined.watermark.mark
            async with asyncio.timeout_at(self._spoke + SILENCE_SECONDS):
                rows = await self._all.page(at.since.mark, at.after, newest)
        except TimeoutError:
            return ()  # many catch up at once: a sign of life, then the same page
        except (DatabaseUnavailable, ShuttingDown):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_OUTAGE_PAUSE_SECONDS):
                    await self._closed.wait()
            return ()
        frames: list[bytes] = []
        async with self._all.writing:
            await asyncio.sleep(0)  # a few of those that catch up together, then whoever else waits for the loop
            for changed in rows:
                own = self._own(self._mine, changed, at.since.told)
                if at.deletions or not changed.row.deleted:
                    frames += own
        if len(rows) < self._all.page_rows:
            self._catching_up = None
            self._level_after = self._all.begun + 1
            self._told = Watermark(newest, at.since.told)
        else:
            at.after = rows[-1].change, rows[-1].seq
            self._told = Watermark(at.since.mark.up_to(*at.after, newest), at.since.told)
        return chunks(frames, self._told)

    def _be_level(self) -> None:
        """Everything in the log is told: while the reader rests, its watermark is this stream's too."""
        if not self._all.resting:
            return
        level = self._all.watermark.level
        if self._mine is not None:
            # what changes again and again may have been ahead of every page: only who is level has told all of it
            if not level or self._all.done < self._level_after:
                self._all.hurry()
                return
            self._mine = None
            self._spoke = 0.0  # says so at once: whoever resumes from an id of the catch-up hears some of it again
        self._told = self._all.watermark
        if level:
            self._passed.clear()

    # --- silence

    async def _silence(self) -> None:
        self._news.clear()
        if self._closed.is_set():
            return
        until = self._spoke + SILENCE_SECONDS
        if self._mine is not None:
            until = min(until, _now() + _LEVEL_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()

    def _sign(self) -> bytes:
        self._spoke = _now()
        return sign_of_life(self._told)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def open_all_jobs_stream(
    all_jobs: AllJobs, chosen: JobFilter, poll_interval: float, last_event_id: str | None
) -> Response:
    """The stream of all jobs that fit; an outage or a shutdown shows before anything is sent."""
    follower = Follower(all_jobs, chosen, poll_interval)
    try:
        await follower.begin(last_event_id)
    except BaseException:
        follower.close()
        raise
    return EventStream(follower)
