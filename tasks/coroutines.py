"""One event loop per process for coroutine tasks, and interrupting what runs on it.

Celery has no coroutine support: a slot hands its coroutine to the loop and waits. The loop is made after the fork.
In a pool of threads this is also where time limits are measured.
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

from celery_jobs.tasks.limited import LimitedCoroutine
from celery_jobs.tasks.time_limits import TimeLimits

UNWIND_SECONDS = 0.5  # what a coroutine gets to clean up in when its hard limit has passed
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


class _Kept(Exception):
    """Holds what asyncio would let out of the loop, which may be the service's."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


async def _kept(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise _Kept(error) from None


class RunningCoroutine:
    """A coroutine on the loop; its outcome is there only when it has really ended.

    `on`: the loop, by default the process's own. `limits`: None where nothing but a cancel ends it early. With `timed`,
    they are measured here.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        on: asyncio.AbstractEventLoop | None = None,
        *,
        limits: TimeLimits | None = None,
        timed: bool = False,
    ) -> None:
        self._loop = on or loop()
        self._ended: Future[None] = Future()
        self._limits = limits or TimeLimits()
        coroutine = _kept(coroutine)
        self._limited = None if limits is None else LimitedCoroutine(coroutine, limits)
        self._timers: list[asyncio.TimerHandle] = []
        self._ended_by_limit = False
        self._task: asyncio.Task[Any] | None = None
        # the task sees the context of the slot, where the current job lives
        self._context = contextvars.copy_context()
        self._loop.call_soon_threadsafe(self._start, self._limited or coroutine, timed)

    def _start(self, coroutine: Coroutine[Any, Any, Any], timed: bool) -> None:
        self._task = self._loop.create_task(coroutine, context=self._context)
        self._task.add_done_callback(self._has_ended)
        if timed and self._limits.soft:
            self._timers.append(self._loop.call_later(self._limits.soft, self._soft_limit))
        if timed and self._limits.hard:
            self._timers.append(self._loop.call_later(self._limits.hard, self._hard_limit))

    def _has_ended(self, _: object = None) -> None:
        for timer in self._timers:
            timer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)

    def interrupt(self) -> None:
        """Raise CancelledError at its next await; safe from any thread, also when it has ended."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._limited is not None:
            self._limited.cancel_comes_first()
        if self._task is not None:
            self._task.cancel()

    def soft_limit(self) -> None:
        """Raise SoftTimeLimitExceeded at its next await; safe from any thread and in a signal handler."""
        self._loop.call_soon_threadsafe(self._soft_limit)

    def _soft_limit(self) -> None:
        if self._limited is not None and self._task is not None:
            self._limited.soft_limit(self._task)

    def _hard_limit(self) -> None:
        """Its time is over: it may unwind, and what it then returns or raises no longer counts."""
        self._ended_by_limit = True
        self._cancel()
        self._timers.append(self._loop.call_later(UNWIND_SECONDS, self._drop))

    def _drop(self) -> None:
        if self._limited is not None:
            self._context.run(self._limited.drop)
        self._cancel()
        self._has_ended()

    def outcome(self) -> Any:
        """Wait for the end; its value, its exception, or asyncio.CancelledError when it was interrupted."""
        try:
            self._ended.result()
        except BaseException:
            # a signal hit the waiting slot: the coroutine must not run on without it
            self.interrupt()
            self._ended.result()
            raise
        if self._ended_by_limit:
            raise self._limits.hard_error()
        assert self._task is not None
        try:
            return self._task.result()
        except _Kept as kept:
            raise kept.error from None
