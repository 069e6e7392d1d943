"""The event loop waits for a database in bounded time, and knows whether what it gave up may take effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.outage import is_momentary, is_outage, was_refused

T = TypeVar("T")

# an API call answers 503 within 5 s of a database that is silent (contract, section 3)
ANSWER_WITHIN_SECONDS = 4.0


@dataclass(slots=True)
class Doubt:
    """Whether a write that is not answered may take effect all the same."""

    writing: Future[Any] | None = None  # SQLite's
    arisen: bool = False  # by the try under way
    left: bool = False  # by a try that failed

    def remains(self) -> bool:
        """True unless the call is known not to have been made; one that has not begun is taken out."""
        return self.arisen or self.left if self.writing is None else not self.writing.cancel()

    def failed(self, error: Exception) -> None:
        """A try is over: what the server itself refused has no effect, what it did not answer may have one."""
        self.left = self.left or (self.arisen and not was_refused(error))
        self.arisen = False


async def once_more(attempt: Callable[[], Awaitable[T]], doubt: Doubt | None = None) -> T:
    """A second try where the first met a connection that an outage had broken, or a deadlock's victim."""
    for last in (False, True):
        try:
            return await attempt()
        except Exception as error:
            if doubt is not None:
                doubt.failed(error)
            if last or not is_momentary(error):
                raise
    raise AssertionError("unreachable")


async def bounded(running: asyncio.Future[T], doubt: Doubt | None = None) -> T:
    """The outcome, or DatabaseUnavailable; the call itself goes on behind, since its cancellation may hang too."""
    try:
        done, _ = await asyncio.wait({running}, timeout=ANSWER_WITHIN_SECONDS)
    except asyncio.CancelledError:
        running.add_done_callback(_forget)
        if isinstance(running, asyncio.Task):
            # to interrupt it now would cost a good connection; one that stays silent must not be kept for ever
            running.get_loop().call_later(ANSWER_WITHIN_SECONDS, running.cancel)
        else:
            running.cancel()  # takes a call out that has not begun
        raise
    if not done:
        running.add_done_callback(_forget)
        in_doubt = doubt is not None and doubt.remains()
        running.cancel()
        raise DatabaseUnavailable("no answer in time", in_doubt=in_doubt)
    try:
        return running.result()
    except Exception as error:
        if is_outage(error):
            raise DatabaseUnavailable(str(error), in_doubt=doubt is not None and doubt.left) from error
        raise


def _forget(running: asyncio.Future[Any]) -> None:
    if not running.cancelled():
        running.exception()  # looked at, so that asyncio does not complain that nobody did
