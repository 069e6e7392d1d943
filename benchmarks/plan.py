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
    naps: int  # jobs followed to their end, one after the other
    streams: int  # open at once
    idle_seconds: float
    shared: int  # jobs that all the streams watch at once
    waits: int  # submits that wait
    wakes: int  # answers to waiting GETs
    sizes: tuple[int, ...]  # of the tables that pages are read from
    whole: int  # the one of them that is listed as a whole
    wholes: int  # how often
    pages: int
    kept: int  # finished jobs whose memory is looked for
    kept_warm_up: int
    pulled: int  # remote tasks of one run
    pulled_before: int  # finished remote tasks in the table beside the empty one
    remote_wakes: int
    remote_waiters_at_rest: int


QUICK = Plan(
    rounds=1,
    burst_seconds=1.5,
    clients=32,
    produced=800,
    starts=20,
    jobs=300,
    counted=40,
    cancels=5,
    naps=10,
    streams=100,
    idle_seconds=3.0,
    shared=1,
    waits=20,
    wakes=100,
    sizes=(1_000, 20_000),
    whole=20_000,
    wholes=1,
    pages=10,
    kept=3_000,
    kept_warm_up=1_000,
    pulled=300,
    pulled_before=20_000,
    remote_wakes=40,
    remote_waiters_at_rest=200,
)
FULL = Plan(
    rounds=5,
    burst_seconds=3.0,
    clients=32,
    produced=4000,
    starts=200,
    jobs=2000,
    counted=300,
    cancels=60,
    naps=100,
    streams=1_000,
    idle_seconds=20.0,
    shared=3,
    waits=200,
    wakes=600,
    sizes=(1_000, 100_000, 1_000_000),
    whole=100_000,
    wholes=3,
    pages=50,
    kept=50_000,
    kept_warm_up=5_000,
    pulled=2_000,
    pulled_before=100_000,
    remote_wakes=300,
    remote_waiters_at_rest=200,
)
