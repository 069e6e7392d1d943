"""From the cancel request of a running coroutine until its slot is free (contract: within 200 ms).

Free means two things: `canceled` in the record, which is what limits count, and, with one slot for two jobs, the first
line of the job that waited for it.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import Any

from benchmarks.figures import Figure, Measured, spread
from benchmarks.plan import Plan
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers, until

GROUP = "cancel of a running coroutine, idle"
NEXT = "cancel of a running coroutine, the next job waits for its slot"
AIM_MS, AIM_WORST_MS = 50.0, 200.0
_SHOWS = ("p50", "max")
_numbers = itertools.count(1_000_000)


def measure(bench: Bench, plan: Plan) -> Measured:
    """On prefork, on threads and embedded."""
    figures: list[Figure] = []
    for pool, slots in (("prefork", 2), ("threads", 8)):
        with ExitStack() as stack:
            ours = stack.enter_context(ours_on_servers(bench))
            stack.enter_context(ours.worker(pool, slots))
            figures += _figures(f"ours, {pool}", ours, plan.cancels)
    with ours_embedded(bench) as ours:
        figures += _figures("ours embedded", ours, plan.cancels)
    return figures, []


def _figures(name: str, ours: Ours, count: int) -> list[Figure]:
    alone = [_cancel_one(ours) for _ in range(count)]
    ours.call("PATCH", "/api/v1/queues/jobs", '{"max_concurrency": 1}')
    both = [_cancel_before_another(ours) for _ in range(count)]
    ended, began = ([times[which] for times in both] for which in (0, 1))
    return [
        *spread(GROUP, name, alone, p50=AIM_MS, worst=AIM_WORST_MS, shows=_SHOWS),
        *spread(NEXT, f"{name}, canceled", ended, p50=AIM_MS, worst=AIM_WORST_MS, shows=_SHOWS),
        *spread(NEXT, f"{name}, next job's first line", began, shows=_SHOWS),
    ]


def _cancel_one(ours: Ours) -> float:
    """Milliseconds, from this program's clock to the database's: both are this machine's."""
    job_id, cancel = _running(ours)
    asked = cancel()
    return (_canceled(ours, job_id) - asked) * 1e3


def _cancel_before_another(ours: Ours) -> tuple[float, float]:
    """Milliseconds until the job is canceled, and until the next one's first line."""
    job_id, cancel = _running(ours)
    number = next(_numbers)
    waiting = json.loads(ours.call("POST", "/api/v1/tasks/mark", f'{{"n": {number}}}'))["job_id"]
    if (status := _record(ours, waiting)["status"]) != "pending":
        raise AssertionError(f"the second job is {status} while the only slot is taken")
    asked = cancel()
    began = ours.bench.marks.wait(number)
    ended = _canceled(ours, job_id)
    until(lambda: _record(ours, waiting)["status"] == "completed", "the second job has left its slot", 30)
    return (ended - asked) * 1e3, (began - asked) * 1e3


def _running(ours: Ours) -> tuple[str, Callable[[], float]]:
    """A coroutine that runs; calling cancels it and says when that was asked."""
    number = next(_numbers)
    job_id = json.loads(ours.call("POST", "/api/v1/tasks/sleeper", f'{{"n": {number}}}'))["job_id"]
    ours.bench.marks.wait(number)
    time.sleep(0.02)

    def cancel() -> float:
        asked = time.time()
        ours.call("POST", f"/api/v1/jobs/{job_id}/$cancel", "")
        return asked

    return job_id, cancel


def _canceled(ours: Ours, job_id: str) -> float:
    """When it was."""

    def ended() -> Any:
        record = _record(ours, job_id)
        return record if record["status"] == "canceled" else None

    until(ended, "the job is canceled", 30)
    return datetime.fromisoformat(ended()["finished_at"]).timestamp()


def _record(ours: Ours, job_id: str) -> Any:
    return json.loads(ours.call("GET", f"/api/v1/jobs/{job_id}", ""))
