"""The whole list in one answer: how long, how large, what it costs in memory, how long other calls wait meanwhile."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.clients.fetch import Fetched, fetched, started
from benchmarks.clients.probe import Calls, probing
from benchmarks.figures import Figure, bounded, compared, percentile
from benchmarks.plan import Plan
from benchmarks.stand.peers import Endpoints
from benchmarks.stand.servers import Ours

GROUP = "the whole list of {}"
WORST, GROWTH = "worst other call meanwhile", "peak growth of the process"
AIM_MS = 50.0
_QUIET_SECONDS = 3.0
_LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Listed:
    """A service with a large table; `calls` are the others that its clients make meanwhile."""

    name: str
    port: int
    pid: int
    path: str
    calls: Calls
    ours: bool


def of_ours(name: str, service: Ours) -> Listed:
    """The service."""
    calls = {
        "record": ("GET", f"/api/v1/jobs/{_newest(service)}"),
        "submit": ("POST", "/api/v1/tasks/noop"),
        "page": ("GET", "/api/v1/jobs?limit=100"),
    }
    return Listed(name, service.port, service.process.pid, "/api/v1/jobs", calls, ours=True)


def of_peer(name: str, peer: Endpoints, same_table: Ours) -> Listed:
    """The peer over the table of a service."""
    calls = {
        "record": ("GET", f"/jobs/{_newest(same_table)}"),
        "submit": ("POST", "/noop"),
        "page": ("GET", "/jobs?limit=100"),
    }
    return Listed(name, peer.port, peer.process.pid, "/jobs", calls, ours=False)


def _newest(service: Ours) -> str:
    return json.loads(service.call("GET", "/api/v1/jobs?limit=1", ""))[0]["id"]


def whole_lists(listed: Sequence[Listed], plan: Plan, size: str) -> tuple[list[Figure], list[str]]:
    """Each in turn, `plan.wholes` times; the second one is the peer of the first."""
    group = GROUP.format(size)
    figures: list[Figure] = []
    notes: list[str] = []
    for each in listed:
        found, said = _several(each, group, plan.wholes)
        figures += found
        notes.append(said)
    if len(listed) > 1:
        mine, peer = listed[0].name, listed[1].name
        for what in ("seconds", GROWTH, WORST):
            figures = compared(figures, f"{mine}, {what}", f"{peer}, {what}")
    return figures, notes


def _several(each: Listed, group: str, count: int) -> tuple[list[Figure], str]:
    with probing(each.port, each.calls) as quiet:
        time.sleep(_QUIET_SECONDS)
    answers: list[Fetched] = []
    growths: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in each.calls}
    for _ in range(count):
        with probing(each.port, each.calls) as meanwhile:
            answer, growth = _fetch(each)
        answers.append(answer)
        growths.append(growth)
        for name, more in meanwhile.times.items():
            times[name] += more
    rested, busy = ([took for some in asked.values() for took in some] for asked in (quiet.times, times))
    seconds = [answer.seconds for answer in answers]
    worst = Figure(group, f"{each.name}, {WORST}", max(busy), "ms")
    figures = [
        Figure(group, f"{each.name}, seconds", statistics.median(seconds), "s", tuple(round(n, 3) for n in seconds)),
        Figure(group, f"{each.name}, size", answers[0].bytes / 1e6, "MB"),
        Figure(group, f"{each.name}, {GROWTH}", max(growths), "MB"),
        bounded(worst, AIM_MS if each.ours else None),
        Figure(group, f"{each.name}, other calls meanwhile, p99", percentile(busy, 0.99), "ms"),
        Figure(group, f"{each.name}, worst call when nothing else happens", max(rested), "ms"),
    ]
    by_call = ", ".join(f"{name} {max(took):.0f} ms" for name, took in times.items())
    return figures, f"{group}, {each.name}, the worst of each other call meanwhile: {by_call}."


def _fetch(each: Listed) -> tuple[Fetched, float]:
    """The whole list, and by how many MB the process grew at most while it answered."""
    process = psutil.Process(each.pid)
    before = peak = process.memory_info().rss
    client = started(each.port, each.path)
    try:
        while client.poll() is None:
            peak = max(peak, process.memory_info().rss)
            time.sleep(_LOOK_SECONDS)
        return fetched(client), (peak - before) / 1e6
    finally:
        client.kill()
        client.wait()
