"""Waiting for facts: polls until something is true, and says what it last saw when it gives up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEFAULT_TIMEOUT_SECONDS = 20.0
INTERVAL_SECONDS = 0.02


class GaveUp(AssertionError):
    """The fact did not come true in time."""


def _gave_up(what: str, timeout: float, seen: object, error: BaseException | None) -> GaveUp:
    last = f"{type(error).__name__}: {error}" if error is not None else repr(seen)
    return GaveUp(f"waited {timeout:g} s until {what}; last seen: {last}")


def wait_until(
    predicate: Callable[[], T],
    what: str,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    *,
    interval: float = INTERVAL_SECONDS,
    ignore: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """The first true value of `predicate`; errors named in `ignore` count as "not yet"."""
    deadline = time.monotonic() + timeout
    while True:
        seen, error = None, None
        try:
            if seen := predicate():
                return seen
        except ignore as exception:
            error = exception
        if time.monotonic() >= deadline:
            raise _gave_up(what, timeout, seen, error) from error
        time.sleep(interval)


async def wait_until_async(
    predicate: Callable[[], Awaitable[T]],
    what: str,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    *,
    interval: float = INTERVAL_SECONDS,
    ignore: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """As `wait_until`, for a coroutine function; the event loop runs on meanwhile."""
    deadline = time.monotonic() + timeout
    while True:
        seen, error = None, None
        try:
            if seen := await predicate():
                return seen
        except ignore as exception:
            error = exception
        if time.monotonic() >= deadline:
            raise _gave_up(what, timeout, seen, error) from error
        await asyncio.sleep(interval)


def stays(predicate: Callable[[], object], what: str, seconds: float, *, interval: float = INTERVAL_SECONDS) -> None:
    """`predicate` is true now and at every look for `seconds`; for what must not happen."""
    deadline = time.monotonic() + seconds
    while True:
        seen = predicate()
        if not seen:
            raise AssertionError(f"{what} did not stay so; seen: {seen!r}")
        if time.monotonic() >= deadline:
            return
        time.sleep(interval)
