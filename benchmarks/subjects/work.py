"""What tasks do, the same on every worker that is measured."""

from __future__ import annotations

import time

POLL_SECONDS = 0.5  # how often the peers look


def nap(seconds: float) -> float:
    """Sleep, and how long that really took."""
    began = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - began
