"""Processor time of processes: what a request or a job costs, whatever else the machine is doing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil


@dataclass
class Meter:
    """Sums user and system time of these processes and their children since it was made."""

    pids: Iterable[int]
    _before: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._before = _times(self.pids)

    def milliseconds(self) -> float:
        """Since the start; children that have ended meanwhile count for nothing."""
        return 1e3 * sum(now - self._before.get(pid, 0.0) for pid, now in _times(self.pids).items())


def _times(pids: Iterable[int]) -> dict[int, float]:
    times: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used = each.cpu_times()
                    times[each.pid] = used.user + used.system
    return times
