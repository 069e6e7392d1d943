"""The frames of the health stream: one look for all who ask at the same time, one event per poll_interval."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from celery_jobs.api.health import HealthWatch
from celery_jobs.api.stream.frame import KEEP_ALIVE, one_line
from celery_jobs.api.stream.response import SILENCE_SECONDS


class HealthFrames:
    """The service's health at once and after each interval, until the client leaves or the service stops."""

    over = False  # it has no end of its own

    def __init__(self, watch: HealthWatch, poll_interval: float, closing: asyncio.Event) -> None:
        self._watch = watch
        self._poll_interval = poll_interval
        self._closing = closing
        self._left = asyncio.Event()

    async def frames(self) -> AsyncIterator[bytes]:
        """An event for each look; comments between two that are far apart."""
        loop = asyncio.get_running_loop()
        while not self._ended():
            due = loop.time() + self._poll_interval
            view = await self._watch.look()
            yield b"data: %s\n\n" % one_line(view.model_dump_json())
            while not self._ended() and (remaining := due - loop.time()) > 0:
                await self._pause(min(remaining, SILENCE_SECONDS))
                if due - loop.time() > 0 and not self._ended():
                    yield KEEP_ALIVE

    def close(self) -> None:
        """End the stream at its next step."""
        self._left.set()

    def _ended(self) -> bool:
        return self._left.is_set() or self._closing.is_set()

    async def _pause(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._left, self._closing)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
