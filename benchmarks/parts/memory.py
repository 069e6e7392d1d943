"""What a finished job leaves in the memory of the process that served it: many no-op jobs, some followed, some listed.

Both services run at the same time: only their size is looked at, not their speed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import psutil

from benchmarks.clients.follow import Followers, followers
from benchmarks.clients.load import burst
from benchmarks.figures import Figure, Measured, bounded
from benchmarks.plan import Plan
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers
from tests.support.waiting import wait_until

GROUP = "memory of the process per finished job, {:,} jobs"
AIM_BYTES = 100.0
_STEP = 1000
_FOLLOWED = 10  # of each step
_PATIENCE_SECONDS = 120.0
_SETTLE_SECONDS = 0.5


@dataclass
class _Watched:
    """A service, and the size of its processes in bytes after each step."""

    ours: Ours
    pids: dict[str, int]
    sizes: dict[str, list[int]] = field(default_factory=dict)
    jobs: int = 0

    def step(self) -> None:
        """Submit the jobs of a step; `finish` waits for them."""
        burst(self.ours.port, "/api/v1/tasks/noop", requests=_STEP - _FOLLOWED)

    def follow(self, following: Followers) -> None:
        """Some jobs whose streams are read to their end, and what a page with a list open asks for."""
        bodies = [self.ours.call("POST", "/api/v1/tasks/nap", '{"seconds": 0.2}') for _ in range(_FOLLOWED)]
        following.open(self.ours.port, [f"/api/v1/jobs/{json.loads(body)['job_id']}/$stream" for body in bodies])
        following.ends()
        for path in ("/api/v1/jobs?limit=100", "/api/v1/queues", "/health"):
            self.ours.call("GET", path, "")

    def finish(self) -> None:
        """When all are completed, note the sizes."""
        self.jobs += _STEP
        completed = self.ours.records.completed
        wait_until(lambda: completed() >= self.jobs, "the jobs are completed", _PATIENCE_SECONDS, interval=0.1)
        time.sleep(_SETTLE_SECONDS)
        for name, pid in self.pids.items():
            self.sizes.setdefault(name, []).append(psutil.Process(pid).memory_info().rss)


def measure(bench: Bench, plan: Plan) -> Measured:
    """The API with a prefork worker, and the embedded service."""
    with ExitStack() as stack:
        following = stack.enter_context(followers())
        served = stack.enter_context(ours_on_servers(bench))
        worker = stack.enter_context(served.worker("prefork", 2))
        embedded = stack.enter_context(ours_embedded(bench))
        watched = [
            _Watched(served, {"API process": served.process.pid, "worker's main process": worker.pid}),
            _Watched(embedded, {"embedded service": embedded.process.pid}),
        ]
        for _ in range(plan.kept // _STEP):
            for each in watched:
                each.step()
            for each in watched:
                each.follow(following)
            for each in watched:
                each.finish()
    figures: list[Figure] = []
    notes: list[str] = []
    for each in watched:
        for name, sizes in each.sizes.items():
            found, said = _growth(name, sizes, plan)
            figures += found
            notes.append(said)
    return figures, notes


def _growth(name: str, sizes: Sequence[int], plan: Plan) -> tuple[list[Figure], str]:
    """The slope of the sizes after the warm-up."""
    first = plan.kept_warm_up // _STEP - 1
    jobs = [(number + 1) * _STEP for number in range(len(sizes))][first:]
    kept = sizes[first:]
    slope, start = statistics.linear_regression(jobs, kept)
    apart = max(abs(size - start - slope * count) for count, size in zip(jobs, kept, strict=True))
    group = GROUP.format(plan.kept)
    figure = bounded(Figure(group, f"{name}, growth", slope, "bytes"), None if "worker" in name else AIM_BYTES)
    said = (
        f"Memory, {name}: {kept[0] / 1e6:.1f} MB after {jobs[0]:,} jobs, {kept[-1] / 1e6:.1f} MB after {jobs[-1]:,}; "
        f"the line through all sizes between is off by at most {apart / 1e6:.1f} MB."
    )
    return [figure, Figure(group, f"{name}, size at the end", kept[-1] / 1e6, "MB")], said
