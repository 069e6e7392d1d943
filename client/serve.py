"""Serving until told to end: what a signal means, and what becomes of a task whose handler fails.

The first SIGINT or SIGTERM: no more tasks, the running one may finish, the worker is taken away. A second one, a second
later or more (the same signal often comes twice at once, from the terminal and from a parent process): the running task
is reported failed, and KeyboardInterrupt or SystemExit is raised.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from celery_jobs.client.retry import Hurry
from celery_jobs.client.run import TaskRuns
from celery_jobs.client.stream import TaskStream
from celery_jobs.client.task import ClaimedTask

log = logging.getLogger("celery_jobs.client")

Handler = Callable[[ClaimedTask], Any]
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_ONE_WISH_SECONDS: Final = 1.0


class Serving:
    """One stream whose tasks are handled until it is stopped."""

    def __init__(self, stream: TaskStream, runs: TaskRuns, hurry: Hurry) -> None:
        self._stream, self._runs, self._hurry = stream, runs, hurry
        self._busy = False
        self._told_at: float | None = None

    def run(self, handler: Handler | None) -> None:
        """Handle tasks; returns when told to end."""
        log.info("taking tasks")
        for task in self._stream:
            if self._stream.stopped:
                break  # it came at the last moment: taking the worker away gives it back
            self._busy = True
            if handler is None:
                task.run()
            else:
                self._handle(task, handler)
            self._busy = False
        log.info("no more tasks are taken")

    def _handle(self, task: ClaimedTask, handler: Handler) -> None:
        try:
            handler(task)
        except (KeyboardInterrupt, SystemExit) as error:
            if not task.ended:
                self._runs.give_up(task, error)
            raise
        except BaseException as error:
            log.exception("the handler failed for task %s of %s", task.id, task.job_name)
            if not task.ended:
                self._runs.fail(task, error)

    def stop(self) -> None:
        """Take no more tasks, finish the running one; from any thread, and from a signal handler."""
        self._hurry.begin()
        self._stream.stop()

    @contextmanager
    def obeying_signals(self) -> Generator[None]:
        """SIGINT and SIGTERM end it, as told above; in any other thread than the main one, they are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._told) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: set by something that is not Python, and cannot be set again
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _told(self, number: int, _frame: FrameType | None) -> None:
        # whatever runs is interrupted here, so nothing may be touched that has a lock: no logging, no threads
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
            self.stop()
            if self._busy:
                _say("the running task may finish; a second signal ends it at once\n")
        elif now - self._told_at >= _ONE_WISH_SECONDS:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode())
