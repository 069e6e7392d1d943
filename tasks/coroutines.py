"""One event loop per process for coroutine tasks, and interrupting what runs on it.

Celery has no coroutine support: a slot hands its coroutine to the loop and waits. The loop is made after the fork.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

_log = logging.getLogger("celery_jobs.coroutines")
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def loop() -> asyncio.AbstractEventLoop:
    """The running loop of this process."""
    pid = os.getpid()
    with _lock:
        if pid not in _loops:
            _loops[pid] = asyncio.new_event_loop()
            threading.Thread(target=_run_for_ever, args=(_loops[pid],), name="coroutine-tasks", daemon=True).start()
        return _loops[pid]


def _run_for_ever(running: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            running.run_forever()
        except BaseException as error:
            # asyncio lets a task's SystemExit and KeyboardInterrupt out of the loop; they are that job's end, not ours
            _log.warning("a coroutine raised %r", error)


class RunningCoroutine:
    """A coroutine on the loop; its outcome is there only when it has really ended."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], on: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = on or loop()
        self._ended: Future[asyncio.Task[Any]] = Future()
        self._task: asyncio.Task[Any] | None = None
        # the task sees the context of the slot, where the current job lives
        context = contextvars.copy_context()
        self._loop.call_soon_threadsafe(self._start, coroutine, context)

    def _start(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> None:
        self._task = self._loop.create_task(coroutine, context=context)
        self._task.add_done_callback(self._ended.set_result)

    def interrupt(self) -> None:
        """Raise CancelledError at its next await; safe from any thread, also when it has ended."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def outcome(self) -> Any:
        """Wait for the end; its value, its exception, or asyncio.CancelledError when it was interrupted."""
        try:
            task = self._ended.result()
        except BaseException:
            # a soft time limit or a signal hit the waiting slot: the coroutine must not run on without it
            self.interrupt()
            self._ended.result()
            raise
        return task.result()
