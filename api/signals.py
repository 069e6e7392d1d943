"""Hearing the signals that end a server before the server does: it waits for open requests before the lifespan ends."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, Final

from celery_jobs.tasks.lifeline import ONE_WISH_SECONDS

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def heard_before_the_server(hear: Callable[[bool], object]) -> Generator[None]:
    """Call `hear(again)` at SIGTERM and SIGINT, then what was to be called; nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wishes = _Wishes(hear)
    chained: dict[int, tuple[Any, Any]] = {}
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if callable(before) and before is not signal.default_int_handler:  # otherwise no server waits for us
            ours = wishes.before(before)
            signal.signal(number, ours)
            chained[number] = ours, before
    try:
        yield
    finally:
        for number, (ours, before) in chained.items():
            if signal.getsignal(number) is ours:
                signal.signal(number, before)


class _Wishes:
    """Signals that come together are one wish; a later one wants it at once."""

    def __init__(self, hear: Callable[[bool], object]) -> None:
        self._hear = hear
        self._first_at: float | None = None

    def before(self, then: Callable[[int, FrameType | None], Any]) -> Any:
        """A signal handler that hears of it before `then` does."""

        def handler(number: int, frame: FrameType | None) -> None:
            again = self._first_at is not None
            if self._first_at is None:
                self._first_at = time.monotonic()
            elif time.monotonic() - self._first_at < ONE_WISH_SECONDS:
                return  # the server would break off what it was just told to finish
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._hear(again)
            then(number, frame)

        return handler
