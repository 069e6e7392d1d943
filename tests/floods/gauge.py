"""What the processes of a deployment hold, looked at while something happens."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from tests.support.processes import Process
from tests.support.stack import Stack

LOOK_EVERY_SECONDS = 0.25
MIB = 1 << 20


@dataclass
class Course:
    """A figure before, at its highest, and afterwards."""

    before: float
    peak: float
    after: float

    def see(self, value: float) -> None:
        """One more look."""
        self.peak, self.after = max(self.peak, value), value


@dataclass
class Gauge:
    """MiB of memory by part, and connections of the database."""

    stack: Stack
    courses: dict[str, Course] = field(default_factory=dict[str, Course])

    def look(self) -> None:
        """Take every figure now."""
        for name, value in self._figures().items():
            if name in self.courses:
                self.courses[name].see(value)
            else:
                self.courses[name] = Course(value, value, value)

    def _figures(self) -> dict[str, float]:
        figures = {"api": _resident([self.stack.process]) / MIB}
        if self.stack.workers:
            figures["workers"] = _resident(self.stack.workers) / MIB
        if not self.stack.kind.embedded:
            figures["redis"] = _redis_bytes(self.stack) / MIB
        if self.stack.kind.database == "postgresql":
            figures["connections"] = self.stack.database_connections()
        return figures

    def grown(self, name: str) -> float:
        """By how many MiB it was higher at its peak than before."""
        return self.courses[name].peak - self.courses[name].before


@contextmanager
def watching(stack: Stack) -> Generator[Gauge]:
    """Looks a few times a second for as long as the block lasts, and once at its end."""
    gauge, ended = Gauge(stack), threading.Event()
    gauge.look()

    def look_on() -> None:
        while not ended.wait(LOOK_EVERY_SECONDS):
            gauge.look()

    thread = threading.Thread(target=look_on, daemon=True)
    thread.start()
    try:
        yield gauge
    finally:
        ended.set()
        thread.join()
    gauge.look()


def _resident(processes: Sequence[Process]) -> int:
    """Of the processes and their children; what a forked child shares with its parent counts in both."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += psutil.Process(process.pid).memory_info().rss
        for child in process.children():
            with suppress(psutil.NoSuchProcess):
                total += child.memory_info().rss
    return total


def _redis_bytes(stack: Stack) -> int:
    import redis

    with redis.Redis.from_url(stack.service.env["CELERY_BROKER_URL"], socket_timeout=5) as client:
        return int(client.info("memory")["used_memory"])  # type: ignore[index]
