"""Waiting for something to claim, or for a task's end: by notification, and one look a second for all who wait.

Whoever waits holds no connection. One of those who wait, the leader, makes the looks with its own access to the
database, so that it works in a host app too; when it leaves, another takes over.

What always holds, between any two steps of the event loop:

- While anybody waits there is a leader, or one of them has been stirred and will find that there is none.
- A call that its waiter cannot use is not lost: who leaves with one passes it on to the next for the same keys.
- Notifications only make it quicker. Each may be missed (they are hints); the look within a second finds what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from typing import Final

from celery_jobs.api.joblib.access import Records
from celery_jobs.records.errors import DatabaseUnavailable

LOOK_SECONDS: Final = 1.0


class Waiter:
    """Somebody who waits for any of `keys`."""

    def __init__(self, keys: Collection[str]) -> None:
        self.keys = frozenset(keys)
        self.called = False  # something is there for it, or it should no longer wait
        self._stirred = asyncio.Event()

    def call(self) -> None:
        """Let it wait no longer."""
        self.called = True
        self._stirred.set()

    def stir(self) -> None:
        """Make it look whether it leads now."""
        self._stirred.set()

    async def rest(self, seconds: float) -> None:
        """Until it is called or stirred, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        self._stirred.clear()


Look = Callable[[Records, Sequence[Waiter]], Awaitable[Iterable[str]]]


class WaitingRoom:
    """All who wait for the same kind of thing in this process; `look` gives the keys for which something is there."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._waiters: dict[Waiter, None] = {}  # in the order in which they came
        self._by_key: dict[str, dict[Waiter, None]] = {}
        self._leader: Waiter | None = None
        self._looked_at = 0.0
        self.closed = False

    def __len__(self) -> int:
        return len(self._waiters)

    @contextlib.contextmanager
    def entered(self, keys: Collection[str]) -> Generator[Waiter]:
        """A place in the room; what is notified from now on is not missed."""
        waiter = Waiter(keys)
        self._waiters[waiter] = None
        for key in waiter.keys:
            self._by_key.setdefault(key, {})[waiter] = None
        if self.closed:
            waiter.call()
        try:
            yield waiter
        finally:
            self._leave(waiter)

    async def wait(self, waiter: Waiter, records: Records, deadline: float) -> bool:
        """Whether it was called before `deadline` (of `time.monotonic`)."""
        while not waiter.called and (left := deadline - time.monotonic()) > 0:
            if self._leader is None:
                self._leader = waiter
            if self._leader is not waiter:
                await waiter.rest(left)
                continue
            due = self._looked_at + LOOK_SECONDS - time.monotonic()
            if due > 0:
                await waiter.rest(min(left, due))
            else:
                await self._look_for_all(records)
        called, waiter.called = waiter.called, False
        return called

    def expects(self, key: str) -> bool:
        """Whether somebody waits for the key; may be asked from any thread."""
        return key in self._by_key

    def call(self, key: str) -> None:
        """Something is there for all who wait for the key."""
        for waiter in self._by_key.get(key, ()):
            waiter.call()

    def call_one(self, key: str) -> None:
        """Something is there for one of those who wait for the key: the first that was not called yet."""
        for waiter in self._by_key.get(key, ()):
            if not waiter.called:
                waiter.call()
                return

    def close(self) -> None:
        """Nobody waits any longer, nor later."""
        self.closed = True
        for waiter in self._waiters:
            waiter.call()

    async def _look_for_all(self, records: Records) -> None:
        self._looked_at = time.monotonic()
        try:
            found = await self._look(records, list(self._waiters))
        except DatabaseUnavailable:
            return  # whoever waits goes on waiting
        for key in found:
            self.call(key)

    def _leave(self, waiter: Waiter) -> None:
        del self._waiters[waiter]
        for key in waiter.keys:
            del self._by_key[key][waiter]
            if not self._by_key[key]:
                del self._by_key[key]
        if self._leader is waiter:
            self._leader = None
        if self._leader is None and self._waiters:  # who was stirred before may leave without having led
            next(iter(self._waiters)).stir()
        # what it was called for may be somebody else's
        if waiter.called and not self.closed:
            for key in waiter.keys:
                self.call_one(key)
