"""The thread pool that can grow, for coroutine tasks and plain ones that wait.

Its threads are daemons: Python has no way to stop a running thread, and one that will not end must not hold the process
for ever (a worker's warm shutdown still waits for it, by asking the pool to stop).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.concurrency.thread import ApplyResult

from celery_jobs.tasks.failures import error_line, traceback_text

_log = logging.getLogger("celery_jobs.pool")

_Work = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class _Slots:
    """Threads that take work from one line, started as work comes, up to a number that may change.

    Every count changes under one lock: a thread that has taken work but still counts as idle would leave the next piece
    of work without a thread.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.abandoned = threading.Event()
        self._work: deque[_Work] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._stopping = False
        self._changed = threading.Condition()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run it in a free thread, or in the next one that is."""
        future: Future[Any] = Future()
        with self._changed:
            self._work.append((future, function, args))
            self._start_threads()
            self._changed.notify()
        return future

    def resize(self, limit: int) -> None:
        """From now on so many; work that waits for a thread gets the new ones."""
        with self._changed:
            self.limit = limit
            self._start_threads()
            self._changed.notify_all()

    def stop(self, wait: bool) -> None:
        """Take nothing more; wait for what runs, unless it was abandoned."""
        with self._changed:
            self._stopping = True
            self._work.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads if wait else []:
            while thread.is_alive() and not self.abandoned.is_set():
                thread.join(0.1)

    def _start_threads(self) -> None:
        while len(self._work) > self._idle and len(self._threads) < self.limit:
            thread = threading.Thread(target=self._run, name=f"slot-{len(self._threads) + 1}", daemon=True)
            self._threads.add(thread)
            self._idle += 1
            thread.start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            future, function, args = work
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
            with self._changed:
                self._idle += 1

    def _next(self) -> _Work | None:
        """Wait for work; None when this thread shall end."""
        with self._changed:
            while not self._work and not self._stopping and len(self._threads) <= self.limit:
                self._changed.wait()
            self._idle -= 1
            if self._stopping or len(self._threads) > self.limit:
                self._threads.discard(threading.current_thread())
                return None
            return self._work.popleft()


class GrowingThreadPool(BasePool):
    """A Celery thread pool with `grow` and `shrink`, which the stock one lacks."""

    limit: int
    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._slots = _Slots(self.limit)

    def grow(self, n: int = 1) -> None:
        """More slots, at once."""
        self._resize(self.limit + n)

    def shrink(self, n: int = 1) -> None:
        """Fewer slots; running jobs finish first."""
        self._resize(max(self.limit - n, 1))

    def _resize(self, slots: int) -> None:
        self.limit = slots
        self._slots.resize(slots)

    def on_stop(self) -> None:
        """Warm shutdown: every running job ends first."""
        self._slots.stop(wait=True)
        super().on_stop()

    def abandon(self) -> None:
        """Stop waiting for threads that will not end; they end with the process."""
        self._slots.abandoned.set()

    def on_terminate(self) -> None:
        """Cold shutdown: running threads end with the process."""
        self._slots.stop(wait=False)

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Nobody can end a thread; the record and the coroutine's own interruption say what becomes of its job."""

    def on_apply(  # pyright: ignore[reportIncompatibleMethodOverride]  (BasePool declares no arguments)
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> ApplyResult:
        """Run one message in a slot."""
        return ApplyResult(self._slots.submit(_apply, target, args, kwargs, callback, accept_callback))

    def _get_info(self) -> dict[str, Any]:
        return super()._get_info() | {"max-concurrency": self.limit}


def _apply(
    target: Callable[..., Any],
    args: tuple[Any, ...] | None,
    kwargs: dict[str, Any] | None,
    callback: Callable[..., Any] | None,
    accept_callback: Callable[..., Any] | None,
) -> None:
    """Run one message. Celery's own version never tells of what its tracer lets out, and so loses the slot for ever."""
    if accept_callback is not None:
        accept_callback(os.getpid(), time.monotonic())
    try:
        outcome = target(*(args or ()), **(kwargs or {}))
    except BaseException as error:
        _log.error("a message could not be run: %s", traceback_text(error))
        outcome = (1, _info_of(RuntimeError(error_line(error))), 0.0)
    if callback is not None:
        callback(outcome)


def _info_of(error: Exception) -> ExceptionInfo:
    try:
        raise error
    except Exception:
        return ExceptionInfo()
