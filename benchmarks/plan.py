"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Sizes of one run."""

    rounds: int  # each round measures every target once, so that other load on the machine hits them alike
    burst_seconds: float
    clients: int
    produced: int  # messages of the bare producer loops
    starts: int
    jobs: int  # end to end
    counted: int  # jobs whose statements are counted
    cancels: int


QUICK = Plan(rounds=1, burst_seconds=1.5, clients=32, produced=800, starts=20, jobs=300, counted=40, cancels=10)
FULL = Plan(rounds=5, burst_seconds=3.0, clients=32, produced=4000, starts=200, jobs=2000, counted=300, cancels=60)
