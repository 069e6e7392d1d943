"""How long this process has been in touch without a gap: who was away may not judge who else was silent."""

from __future__ import annotations

import time


class Contact:
    """Counts from the first sign, and anew after an outage of the database or a freeze of the process."""

    def __init__(self, longest_gap_seconds: float) -> None:
        self._longest_gap = longest_gap_seconds
        self._since: float | None = None
        self._last = 0.0

    def sign(self) -> None:
        """The process runs, and where it looked at the database, that answered."""
        clock = _seconds_since_boot()
        if self._since is None or clock - self._last > self._longest_gap:
            self._since = clock
        self._last = clock

    def lost(self) -> None:
        """The database does not answer: nobody could be heard."""
        self._since = None

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        if self._since is None or _seconds_since_boot() - self._last > self._longest_gap:
            return 0.0
        return self._last - self._since


def _seconds_since_boot() -> float:
    # a clock that goes on while the machine sleeps, as leases do: after a night's sleep nobody may judge at once
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
