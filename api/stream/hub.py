"""Fan-out: who watches which job, and a mailbox of one row for each watcher.

A row tells everything that was passed since an earlier one (frame.py), so a slow client needs the latest row only:
its mailbox never grows and it misses no status.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum

from celery_jobs.records.errors import ShuttingDown
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import StreamRow


class News(Enum):
    """What a watcher hears besides rows."""

    quiet = "nothing happened in the time given"
    gone = "the job's row has disappeared"
    closed = "the stream must end: the client left or the service stops"


class Subscription:
    """One open stream's place in the hub; close it when the stream ends."""

    __slots__ = ("_arrived", "_closed", "_gone", "_hub", "_row", "_version", "job_id", "poll_interval")

    def __init__(self, hub: Hub, job_id: JobId, poll_interval: float) -> None:
        self.job_id = job_id
        self.poll_interval = poll_interval
        self._hub = hub
        self._row: StreamRow | None = None
        self._version = -1
        self._gone = False
        self._closed = False
        self._arrived = asyncio.Event()

    def offer(self, row: StreamRow) -> None:
        """Keep the row when it is newer than all that came before."""
        if row.version > self._version:
            self._version = row.version
            self._row = row
            self._arrived.set()

    def seen(self, row: StreamRow) -> None:
        """The stream has read this row by itself: older ones are no news."""
        if row.version >= self._version:
            self._version, self._row = row.version, None
            if not (self._gone or self._closed):
                self._arrived.clear()

    def vanish(self) -> None:
        """The job's row has disappeared."""
        self._gone = True
        self._arrived.set()

    def stop(self) -> None:
        """Make the stream end now, without a further event."""
        self._closed = True
        self._arrived.set()

    def close(self) -> None:
        """Leave the hub; doing it twice is fine."""
        self.stop()
        self._hub.forget(self)

    async def next(self, timeout: float) -> StreamRow | News:
        """The latest row that was not taken yet, or what else there is to say after at most `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._arrived.wait()
        except TimeoutError:
            return News.quiet
        row, self._row = self._row, None
        if self._closed:
            return News.closed
        if row is not None:
            if not self._gone:
                self._arrived.clear()
            return row
        if self._gone:
            return News.gone
        self._arrived.clear()
        return News.quiet


class Hub:
    """All open streams of this process."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self._watchers: dict[JobId, set[Subscription]] = {}
        self._intervals: Counter[float] = Counter()
        self._fresh: set[JobId] = set()
        self._on_change: Callable[[], None] = _nothing
        self._on_close: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a watcher came."""
        self._on_change = callback

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back when every open stream must end."""
        self._on_close.append(callback)

    def subscribe(self, job_id: JobId, poll_interval: float) -> Subscription:
        """Watch a job; do it before reading its row, so that no change in between is lost. ShuttingDown after close."""
        if self.closing.is_set():
            raise ShuttingDown
        subscription = Subscription(self, job_id, poll_interval)
        self._watchers.setdefault(job_id, set()).add(subscription)
        self._intervals[poll_interval] += 1
        self._fresh.add(job_id)
        self._on_change()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Take a watcher out; fine when it is out already."""
        watchers = self._watchers.get(subscription.job_id, set())
        if subscription not in watchers:
            return
        watchers.remove(subscription)
        if not watchers:
            del self._watchers[subscription.job_id]
        self._intervals[subscription.poll_interval] -= 1
        if not self._intervals[subscription.poll_interval]:
            del self._intervals[subscription.poll_interval]

    def watched(self) -> set[JobId]:
        """The jobs that somebody watches now."""
        return set(self._watchers)

    def watches(self, job_id: JobId) -> bool:
        """True when somebody watches this job; may be asked from any thread."""
        return job_id in self._watchers

    def take_fresh(self) -> set[JobId]:
        """The jobs that gained a watcher since this was last asked."""
        fresh, self._fresh = self._fresh, set()
        return fresh & self._watchers.keys()

    def shortest_interval(self) -> float:
        """The smallest poll_interval among the watchers."""
        return min(self._intervals, default=60.0)

    def open_streams(self) -> int:
        """How many streams watch a job now."""
        return sum(self._intervals.values())

    def publish(self, row: StreamRow) -> None:
        """Hand a row to the job's watchers."""
        for subscription in self._watchers.get(row.id, ()):
            subscription.offer(row)

    def vanish(self, job_id: JobId) -> None:
        """Tell the job's watchers that its row has disappeared."""
        for subscription in self._watchers.get(job_id, ()):
            subscription.vanish()

    def close(self) -> None:
        """End every open stream at once and refuse new ones."""
        self.closing.set()
        for watchers in self._watchers.values():
            for subscription in watchers:
                subscription.stop()
        for callback in self._on_close:
            callback()


def _nothing() -> None:
    pass
