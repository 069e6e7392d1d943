"""What the faults did to which process, so that the judge knows whose silence has a reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

FOREVER = float("inf")


@dataclass
class Toll:
    """Times are seconds since the epoch, as in the journal; process ids may come again."""

    deaths: dict[int, list[float]] = field(default_factory=dict)
    stops: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    log: list[tuple[float, float, str]] = field(default_factory=list)
    died_alone: list[str] = field(default_factory=list)
    late_exits: list[str] = field(default_factory=list)

    def killed(self, pids: Iterable[int], at: float | None = None) -> None:
        """These processes ended without a word."""
        for pid in pids:
            self.deaths.setdefault(pid, []).append(at or time.time())

    @contextmanager
    def frozen(self, pids: Iterable[int]) -> Generator[None]:
        """These processes stand still until the end of the `with`."""
        pids, since = list(pids), time.time()
        for pid in pids:
            self.stops.setdefault(pid, []).append((since, FOREVER))
        yield
        for pid in pids:
            self.stops[pid][-1] = since, time.time()

    def stood_still(self, pids: Iterable[int], since: float) -> bool:
        """Whether one of these processes stood still at some time from then on."""
        return any(end >= since for pid in pids for _, end in self.stops.get(pid, []))

    def death_of(self, pid: int, after: float) -> float | None:
        """When the process that lived then was killed."""
        return min((at for at in self.deaths.get(pid, []) if at >= after - 0.5), default=None)

    def stops_of(self, pid: int, at_least: float) -> list[tuple[float, float]]:
        """From when to when the process stood still, where that was for so long."""
        return [(since, until) for since, until in self.stops.get(pid, []) if until - since >= at_least]
