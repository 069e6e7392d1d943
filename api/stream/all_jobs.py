"""The one reader of a process for the streams of all jobs: what changed, in the order of the changes.

It sleeps while nobody follows. Otherwise it looks when a hint comes, whatever job it names, and whenever the smallest
poll_interval has passed. What it found stays in a short log, from which every stream reads at its own pace; a stream
that is slower than the log is long reads the database by itself (follower.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from celery_jobs.api.stream.batch import Batch, Told, Written
from celery_jobs.api.stream.hub import Hub
from celery_jobs.api.stream.position import Positions, Watermark
from celery_jobs.records.changes import Changed, Look, Mark
from celery_jobs.records.errors import DatabaseUnavailable, ShuttingDown
from celery_jobs.records.ids import JobId

logger = logging.getLogger(__name__)

_PAGE_ROWS: Final = 200
_MOST_BYTES_HELD: Final = 24 << 20
SHORTEST_LOOK_SECONDS: Final = 0.02
LONGEST_BACK_OFF_SECONDS: Final = 5.0
_MOST_POSITIONS: Final = 10_000
_MOST_WHILE_BEHIND: Final = 100_000  # only what is not level with the database needs them to repeat nothing
_NOWHERE: Final = Watermark(Mark(0), Mark(0))
_MOST_PAGES_KEPT: Final = 8
_PAGES_AT_ONCE: Final = 2  # streams that catch up take turns, so that they leave the database to others


_Wanted = tuple[Mark, tuple[int, int] | None, Mark]


class ChangeSource(Protocol):
    """What the reader needs of a scheduler."""

    async def everything_seen(self) -> Mark:
        """The mark of a look now."""
        ...

    async def everything_since(self, mark: Mark, after: tuple[int, int] | None, until: int | None, most: int) -> Look:
        """The rows written since a look with this mark, in order; `after` and `until` bound them."""
        ...

    def on_hint(self, callback: Callable[[set[JobId]], None]) -> None:
        """Call back, from any thread, with jobs that changed."""
        ...


class Follows(Protocol):
    """An open stream as the reader sees it."""

    place: int  # the number of the next batch that it will read
    poll_interval: float

    def wake(self) -> None:
        """There is something new in the log."""
        ...

    def stop(self) -> None:
        """End now."""
        ...


class Joined(NamedTuple):
    """Where a stream begins to read: behind a look that began after it had asked."""

    place: int
    watermark: Watermark


class AllJobs:
    """Reads for all streams of all jobs of this process; `run` it as one task for as long as the service lives."""

    def __init__(
        self,
        source: ChangeSource,
        hub: Hub,
        *,
        page_rows: int = _PAGE_ROWS,
        most_bytes_held: int = _MOST_BYTES_HELD,
    ) -> None:
        self.page_rows = page_rows
        self.begun = self.done = 0  # looks
        self.watermark = _NOWHERE
        self._source = source
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._followers: set[Follows] = set()
        self._intervals: Counter[float] = Counter()
        self._joining: list[asyncio.Future[Joined]] = []
        self._woken, self._asked = asyncio.Event(), asyncio.Event()
        self._hinted = False
        self._looked = 0.0
        self._failures = 0
        self.written: Written = {}
        self.writing = asyncio.Semaphore(_PAGES_AT_ONCE)
        self._turns = asyncio.Semaphore(_PAGES_AT_ONCE)
        self._pages: OrderedDict[_Wanted, asyncio.Task[Sequence[Changed]]] = OrderedDict()
        self._log: deque[Batch] = deque()
        self._first = self._held = 0
        self._most_held = most_bytes_held
        self._forget()
        hub.on_close(self._close)
        source.on_hint(self._on_hint)

    # --- for streams

    def follow(self, follower: Follows) -> None:
        """Count a stream in; ShuttingDown after the hub was closed."""
        if self._hub.closing.is_set():
            raise ShuttingDown
        self._followers.add(follower)
        self._intervals[follower.poll_interval] += 1

    def leave(self, follower: Follows) -> None:
        """Take a stream out; fine when it is out already."""
        if follower in self._followers:
            self._followers.remove(follower)
            self._intervals -= Counter((follower.poll_interval,))

    def hurry(self) -> None:
        """Look soon, though nothing may have changed."""
        self._woken.set()

    def open_streams(self) -> int:
        """How many streams follow all jobs now."""
        return len(self._followers)

    async def join(self) -> Joined:
        """The place behind the next look, which all who ask meanwhile share. DatabaseUnavailable, ShuttingDown."""
        if self._hub.closing.is_set():
            raise ShuttingDown
        joining: asyncio.Future[Joined] = self._loop.create_future()
        self._joining.append(joining)
        self._woken.set()
        self._asked.set()
        return await joining

    def batch(self, place: int) -> Batch | None:
        """The batch at this place; None while it is still to come."""
        return self._log[place - self._first] if place < self._end else None

    @property
    def resting(self) -> bool:
        """False within a look, also one that failed: then the log holds more than the watermark says."""
        return self.done == self.begun

    def dropped(self, place: int) -> bool:
        """True when the log begins after this place."""
        return place < self._first

    async def page(self, mark: Mark, after: tuple[int, int] | None, newest: Mark) -> Sequence[Changed]:
        """At most `page_rows` changes for a stream that catches up. DatabaseUnavailable, ShuttingDown.

        Streams that come from the same place share the read when they joined at one look, whose mark is `newest`: what
        was open to it comes to them through the log.
        """
        wanted = mark, after, newest
        reading = self._pages.get(wanted)
        if reading is None:
            if len(self._pages) >= _MOST_PAGES_KEPT:
                self._pages.popitem(last=False)
            reading = self._pages[wanted] = asyncio.create_task(self._read_page(*wanted))
            reading.add_done_callback(lambda done: self._drop_if_failed(wanted, done))
        return await asyncio.shield(reading)  # one client that leaves must not end the read of the others

    async def _read_page(self, mark: Mark, after: tuple[int, int] | None, newest: Mark) -> Sequence[Changed]:
        async with self._turns:
            if self._hub.closing.is_set():
                raise ShuttingDown
            return (await self._source.everything_since(mark, after, newest.high, self.page_rows)).rows

    def _drop_if_failed(self, wanted: _Wanted, done: asyncio.Task[Sequence[Changed]]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._pages.pop(wanted, None)

    # --- reading

    async def run(self) -> None:
        """Read for ever; an outage of the database only delays what the streams say."""
        while True:
            await self._rest()
            first = len(self._joining)  # who joins during the look is answered by the next one
            try:
                await self._look()
            except Exception as error:
                # who came meanwhile is told at once too: a second look that is silent would take too long
                self._answer(len(self._joining), error)
                await self._back_off(error)
            else:
                self._failures = 0
                self._answer(first, Joined(self._end, self.watermark))

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._look_at()):
                await self._woken.wait()
        await asyncio.sleep(self._looked + SHORTEST_LOOK_SECONDS - self._loop.time())
        self._woken.clear()
        self._asked.clear()
        self._hinted = False

    def _look_at(self) -> float | None:
        """When the next look is due by itself; None while nobody follows."""
        return self._looked + min(self._intervals) if self._intervals else None

    async def _look(self) -> None:
        self._looked = self._loop.time()
        if not self._followers:
            self._forget()
            return
        self.begun += 1
        if self.watermark is _NOWHERE:
            mark = await self._source.everything_seen()
            self.watermark = Watermark(mark, mark)
        else:
            await self._read_changes()
        self.done = self.begun

    def _forget(self) -> None:
        self.watermark = _NOWHERE
        self._positions = Positions(_MOST_POSITIONS)
        self._first, self._held = self._end, 0
        self._log.clear()

    async def _read_changes(self) -> None:
        since, judged_by = self.watermark
        first: Look | None = None
        after: tuple[int, int] | None = None
        while True:
            until = None if first is None else first.mark.high  # what changes meanwhile is left to the next look
            look = await self._source.everything_since(since, after, until, self.page_rows)
            first = first or look
            told = [Told.of(changed, self._positions.advance(changed, judged_by)) for changed in look.rows]
            if len(look.rows) < self.page_rows:
                break
            self._positions.limit(_MOST_WHILE_BEHIND)
            after = look.rows[-1].change, look.rows[-1].seq
            self._append(told, Watermark(since.up_to(*after, first.mark), judged_by))
        # what changed between two pages has left the order in which they are read: the next look tells all of it
        self.watermark = Watermark(first.mark, first.mark if after is None else judged_by)
        if self.watermark.level:
            self._positions.limit(_MOST_POSITIONS)
        if told:
            self._append(told, self.watermark, levels=self.begun if after is None else 0)

    def _append(self, told: Sequence[Told], watermark: Watermark, *, levels: int = 0) -> None:
        ids = () if levels else (each.changed.row.id for each in told)
        batch = Batch(told, watermark, [(job_id, self._positions[job_id]) for job_id in ids], levels)
        self._log.append(batch)
        self._held += batch.size
        needed = min((follower.place for follower in self._followers), default=self._end)
        while self._first < needed or (self._held > self._most_held and len(self._log) > 1):
            self._held -= self._log.popleft().size
            self._first += 1
        for follower in self._followers:
            follower.wake()

    @property
    def _end(self) -> int:
        return self._first + len(self._log)

    async def _back_off(self, error: Exception) -> None:
        if not self._failures:
            fault = None if isinstance(error, DatabaseUnavailable) else error
            logger.warning("streams of all jobs cannot read the records: %s", error, exc_info=fault)
        self._failures += 1
        with contextlib.suppress(TimeoutError):  # somebody who opens a stream wants an answer now
            async with asyncio.timeout(min(0.1 * 2 ** min(self._failures, 10), LONGEST_BACK_OFF_SECONDS)):
                await self._asked.wait()

    # --- hints and the end

    def _on_hint(self, _ids: set[JobId]) -> None:
        if self._followers and not self._hinted:
            self._hinted = True
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody follows any more
                self._loop.call_soon_threadsafe(self._woken.set)

    def _close(self) -> None:
        for follower in self._followers:
            follower.stop()
        self._answer(len(self._joining), ShuttingDown())

    def _answer(self, first: int, outcome: Joined | Exception) -> None:
        answered, self._joining = self._joining[:first], self._joining[first:]
        for each in answered:
            if each.done():
                continue  # its client left
            if isinstance(outcome, Exception):
                each.set_exception(outcome)
            else:
                each.set_result(outcome)
