"""From the cancel request of a running coroutine to `canceled` in its record (contract: within 200 ms)."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from benchmarks.plan import Plan
from benchmarks.report import Figure, bounded
from benchmarks.servers import Bench, Ours, ours_embedded, ours_on_servers, until

GROUP = "cancel of a running coroutine, idle"
AIM_MS = 200.0
_numbers = itertools.count(1_000_000)


def measure(bench: Bench, plan: Plan) -> list[Figure]:
    """On prefork, on threads and embedded."""
    figures: list[Figure] = []
    for pool, slots in (("prefork", 2), ("threads", 8)):
        with ExitStack() as stack:
            ours = stack.enter_context(ours_on_servers(bench))
            stack.enter_context(ours.worker(pool, slots))
            figures += _figures(f"ours, {pool}", _cancel_several(ours, plan.cancels))
    with ours_embedded(bench) as ours:
        figures += _figures("ours embedded", _cancel_several(ours, plan.cancels))
    return figures


def _figures(name: str, times: list[float]) -> list[Figure]:
    p50 = Figure(GROUP, f"{name}, p50", statistics.median(times), "ms")
    return [p50, bounded(Figure(GROUP, f"{name}, max", max(times), "ms"), AIM_MS)]


def _cancel_several(ours: Ours, count: int) -> list[float]:
    return [_cancel_one(ours) for _ in range(count)]


def _cancel_one(ours: Ours) -> float:
    """Milliseconds, from this program's clock to the database's: both are this machine's."""
    number = next(_numbers)
    job_id = json.loads(ours.call("POST", "/api/v1/tasks/sleeper", f'{{"n": {number}}}'))["job_id"]
    ours.bench.marks.wait(number)
    time.sleep(0.02)
    asked = time.time()
    ours.call("POST", f"/api/v1/jobs/{job_id}/$cancel", "")

    def ended() -> Any:
        record = json.loads(ours.call("GET", f"/api/v1/jobs/{job_id}", ""))
        return record if record["status"] == "canceled" else None

    until(ended, "the job is canceled", 30)
    finished = datetime.fromisoformat(ended()["finished_at"]).timestamp()
    return (finished - asked) * 1e3
