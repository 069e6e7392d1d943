"""The event loop of a test's service, in a thread of its own, so that a test may wait without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="jobs-service", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises; RuntimeError inside of the loop, which would wait for itself."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("inside of a coroutine job, use `await jobs_service.scheduler.…` or a SyncScheduler")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """End the loop; what still runs in it does not go on."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException:  # a job's SystemExit, which asyncio lets out: it is that job's end alone
                continue
