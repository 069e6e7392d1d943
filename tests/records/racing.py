"""Calls at the same moment, from processes of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

Call = Callable[[], Any]


class Race:
    """Keeps its threads, so that the calls of each round start together."""

    def __init__(self, runners: int) -> None:
        self._pool = ThreadPoolExecutor(runners)
        self._gate = threading.Barrier(runners)
        self._runners = runners

    def run(self, *calls: Call) -> list[Any]:
        """The answers in the order of the calls; an exception is an answer."""
        assert len(calls) == self._runners
        return list(self._pool.map(self._start, calls))

    def _start(self, call: Call) -> Any:
        self._gate.wait(60)
        try:
            return call()
        except Exception as error:
            return error

    def close(self) -> None:
        self._pool.shutdown()


@contextmanager
def race(runners: int) -> Generator[Race]:
    """A race of that many."""
    made = Race(runners)
    try:
        yield made
    finally:
        made.close()


def only(answers: Sequence[Any]) -> Any:
    """The one answer that is not None."""
    [won] = [answer for answer in answers if answer is not None]
    return won
