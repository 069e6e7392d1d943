"""No-op jobs end to end: the time from the first submit to the last completion.

Streamed: submitted while a worker runs; ours over HTTP, bare Celery by `apply_async` in a loop (which no HTTP slows)
and by the `delay()` endpoint. Backlog: all submitted before the worker may take the first, timed from then.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack

import redis

from benchmarks.clients.load import burst
from benchmarks.figures import Figure, Measured, compared, median_figure
from benchmarks.plan import Plan
from benchmarks.stand.cpu import Meter
from benchmarks.stand.peers import Bare, Endpoints
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers, until

GROUP = "no-op jobs end to end"
POOLS = (("prefork", 2), ("threads", 8))
AIM = 0.7
_PATIENCE_SECONDS = 300.0
# one run says little on a busy machine, and a whole round takes long
_ROUNDS_SHARE = 2


def measure(bench: Bench, plan: Plan) -> Measured:
    """Ours and bare Celery by turns, on each pool."""
    rates: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)

    def note(name: str, seconds: float, meter: Meter) -> None:
        rates[name].append(plan.jobs / seconds)
        cpu[name].append(meter.milliseconds() / plan.jobs)

    rounds = max(1, plan.rounds // _ROUNDS_SHARE)
    for pool, slots in POOLS:
        with ExitStack() as stack:
            ours, bare = stack.enter_context(ours_on_servers(bench)), Bare(bench, backend=True)
            mine, theirs = stack.enter_context(ours.worker(pool, slots)), stack.enter_context(bare.worker(pool, slots))
            peer = stack.enter_context(bare.http())
            redis_pid, postgres_pid = bench.redis.process.pid, bench.postgres.process.pid
            for _ in range(rounds):
                pids = [ours.process.pid, mine.pid, redis_pid, postgres_pid]
                _ours(f"ours, {pool}", ours, plan.jobs, pids, note)
                _bare(f"bare, {pool}", bare, peer, plan.jobs, [theirs.pid, redis_pid], note)
    with ours_embedded(bench) as ours:
        for _ in range(rounds):
            _ours("ours embedded", ours, plan.jobs, [ours.process.pid], note)
    figures = [median_figure(GROUP, name, values, "jobs/s", cpu[name]) for name, values in rates.items()]
    return _against_peers(figures), []


Note = Callable[[str, float, Meter], None]


def _ours(name: str, ours: Ours, jobs: int, pids: list[int], note: Note) -> None:
    _await_completed(ours, _submit(ours, 20), 20)  # connections, caches, the pool's children
    ours.clear()
    ours.pause(False)
    meter = Meter(pids)
    note(f"{name}, over HTTP", _await_completed(ours, _submit(ours, jobs), jobs), meter)
    ours.clear()
    _submit(ours, jobs)
    meter, began = Meter(pids), time.time()
    ours.pause(False)
    note(f"{name}, backlog", _await_completed(ours, began, jobs), meter)
    ours.clear()
    ours.pause(False)


def _submit(ours: Ours, jobs: int) -> float:
    """When the first was sent."""
    return burst(ours.port, "/api/v1/tasks/noop", requests=jobs).began


def _await_completed(ours: Ours, began: float, jobs: int) -> float:
    until(lambda: ours.records.completed() >= jobs, f"{jobs} jobs are completed", _PATIENCE_SECONDS)
    return time.time() - began


def _bare(name: str, bare: Bare, peer: Endpoints, jobs: int, pids: list[int], note: Note) -> None:
    _await_results(bare, bare.produce(20)[0], 21)
    meter = Meter(pids)
    note(f"{name}, by apply_async", _await_results(bare, bare.produce(jobs)[0], jobs + 1), meter)
    meter = Meter([*pids, peer.process.pid])
    began = burst(peer.port, "/noop", requests=jobs).began
    note(f"{name}, by delay() over HTTP", _await_results(bare, began, jobs), meter)
    bare.control("cancel_consumer")
    bare.produce(jobs)
    meter, began = Meter(pids), time.time()
    bare.control("add_consumer")
    note(f"{name}, backlog", _await_results(bare, began, jobs + 1), meter)


def _await_results(bare: Bare, began: float, results: int) -> float:
    with redis.Redis.from_url(bare.results) as client:
        until(lambda: client.dbsize() >= results, f"{results} results are there", _PATIENCE_SECONDS)
        seconds = time.time() - began
        client.flushdb()
    return seconds


def _against_peers(figures: list[Figure]) -> list[Figure]:
    for pool, _slots in POOLS:
        peer = f"bare, {pool}"
        figures = compared(figures, f"ours, {pool}, over HTTP", f"{peer}, by apply_async", AIM)
        figures = compared(figures, f"ours, {pool}, backlog", f"{peer}, backlog", AIM)
        figures = compared(figures, f"{peer}, by delay() over HTTP", f"{peer}, by apply_async")
    figures = compared(figures, "ours embedded, over HTTP", "bare, threads, by apply_async", AIM)
    return compared(figures, "ours embedded, backlog", "bare, threads, backlog", AIM)
