"""Remote workers that pull over HTTP: tasks a second, the time of a claim, and both in a table that is full.

A worker claims, reports running and completed, and begins again, on a kept connection, with an id of its own; all tasks
were submitted before. One API process serves them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from benchmarks.clients import raw
from benchmarks.clients.load import burst
from benchmarks.clients.pull import Pulled, pull
from benchmarks.figures import Figure, Measured, beside, bounded, compared, median_figure, spread
from benchmarks.parts import remote_waits
from benchmarks.plan import Plan
from benchmarks.stand.cpu import Meter
from benchmarks.stand.fill import fill
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers

RATE = "remote tasks per second: claimed, reported running, reported completed"
CLAIM, REPORT = "remote workers, a claim sent to its answer", "remote workers, a report sent to its answer"
WORKERS = (1, 8, 40)
SERVICES = (("servers", "ours"), ("embedded", "ours embedded"))
AIM_RATE, AIM_RATE_WORKERS = 500.0, 8
AIM_CLAIM_MS = 20.0
# the same, within what one run differs from the next
AIM_GROWTH = 0.9
_WARM_UP = 100
# one run says little on a busy machine, and a whole round takes long
_ROUNDS_SHARE = 2

Service = Callable[[], AbstractContextManager[Ours]]


def measure(bench: Bench, plan: Plan) -> Measured:
    """The rates, with an empty table and a full one by turns; then the waiters."""
    figures: list[Figure] = []
    notes: list[str] = []
    services: dict[str, Service] = {
        "ours": lambda: ours_on_servers(bench),
        "ours embedded": lambda: ours_embedded(bench),
    }
    for name, service in services.items():
        figures += _rates(name, service, plan, notes)
    waits, said = remote_waits.measure(bench, plan)
    return figures + waits, notes + said


def _rates(name: str, service: Service, plan: Plan, notes: list[str]) -> list[Figure]:
    pulled: dict[str, list[Pulled]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        empty, full = stack.enter_context(service()), stack.enter_context(service())
        _fill(full, plan.pulled_before)
        for ours in (empty, full):
            _pull(ours, _WARM_UP, 1)
        for _ in range(max(1, plan.rounds // _ROUNDS_SHARE)):
            for workers in WORKERS:
                for ours, before in ((empty, 0), (full, plan.pulled_before)):
                    run, milliseconds = _pull(ours, plan.pulled, workers)
                    pulled[target(name, workers, before)].append(run)
                    cpu[target(name, workers, before)].append(milliseconds)
                empty.records.clear()
    notes += [_note(measured, runs) for measured, runs in pulled.items()]
    return _figures(name, pulled, cpu, plan.pulled_before)


def target(name: str, workers: int, before: int = 0) -> str:
    """The name of the figures of so many workers, in a table with so many finished tasks."""
    table = f", {before // 1000}k finished before" if before else ""
    return f"{name}, {workers} worker{'s' if workers > 1 else ''}{table}"


def _pull(ours: Ours, tasks: int, workers: int) -> tuple[Pulled, float]:
    """What the workers came to, and the service's processor time for each task."""
    register(ours)
    burst(ours.port, raw.SUBMIT, raw.PAYLOAD, requests=tasks)
    meter = Meter([ours.process.pid])
    pulled = pull(ours.port, tasks, workers)
    return pulled, meter.milliseconds() / tasks


def register(ours: Ours) -> str:
    """The job, served by the identity that measures too, so that it can be submitted before any worker is there."""
    return str(json.loads(ours.call("PUT", f"{raw.REMOTE}/rooms/@global/jobs", json.dumps(raw.JOB)))["full_name"])


def _fill(ours: Ours, count: int) -> None:
    name = register(ours)
    fill(ours.records, count, (name, ours.records.text("SELECT id FROM remote_jobs WHERE removed_at IS NULL")))


def _figures(name: str, pulled: dict[str, list[Pulled]], cpu: dict[str, list[float]], before: int) -> list[Figure]:
    rates: list[Figure] = []
    claims: list[Figure] = []
    reports: list[Figure] = []
    for measured, runs in pulled.items():
        rate = median_figure(RATE, measured, [len(run.claims) / run.seconds for run in runs], "/s", cpu[measured])
        aimed = measured == target(name, AIM_RATE_WORKERS)
        rates.append(bounded(rate, at_least=AIM_RATE) if aimed else rate)
        claims += spread(CLAIM, measured, _all([run.claims for run in runs]), p99=AIM_CLAIM_MS)
        reports += spread(REPORT, measured, _all([run.reports for run in runs]))
    for workers in WORKERS:
        full, empty = target(name, workers, before), target(name, workers)
        rates = compared(rates, full, empty, at_least=AIM_GROWTH)
        claims, reports = beside(claims, full, empty), beside(reports, full, empty)
    return [*rates, *claims, *reports]


def _all(times: Sequence[Sequence[float]]) -> list[float]:
    return [each for some in times for each in some]


def _note(measured: str, runs: Sequence[Pulled]) -> str:
    share = max(run.cpu_share for run in runs)
    empty = sum(run.empty for run in runs)
    return f"Remote tasks, {measured}: the client used {share:.1%} of a core; {empty} claims found nothing too early."
