"""Submits per second over HTTP with many kept connections, and bare `apply_async` in a loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from benchmarks.clients.load import burst
from benchmarks.figures import Figure, Measured, compared, median_figure
from benchmarks.plan import Plan
from benchmarks.stand.cpu import Meter
from benchmarks.stand.peers import Bare
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers

GROUP = "submits per second, {} clients"
NOOP, COMPUTE = ("/api/v1/tasks/noop", "{}"), ("/api/v1/compute", '{"duration": 0.1}')
DELAY, DELAY_FIRE = "delay() endpoint", "delay(), no result backend"
NOTHING = "FastAPI that returns at once"
HELD, POOL = "apply_async, held producer", "apply_async in a loop"


@dataclass(frozen=True)
class Target:
    """One endpoint; `before` readies its service and `after` throws away what the burst left."""

    name: str
    port: int
    path: str
    body: str
    pids: Sequence[int]
    before: Callable[[], object]
    after: Callable[[], object]


def measure(bench: Bench, plan: Plan) -> Measured:
    """Every target once a round."""
    group = GROUP.format(plan.clients)
    rates: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        bare = [Bare(bench, backend=True), Bare(bench, backend=False)]
        ours, embedded = stack.enter_context(ours_on_servers(bench)), stack.enter_context(ours_embedded(bench))
        idle = [*_ours(bench, ours, embedded), *_peers(stack, bench, bare)]
        for _ in range(plan.rounds):
            _round(idle, plan, rates, cpu)
            for name, held in ((HELD, True), (POOL, False)):
                rates[name].append(bare[0].produce(plan.produced, held=held)[1])
                bare[0].clear()
        busy = _with_workers(stack, bench, ours, embedded, bare[0], idle)
        for _ in range(plan.rounds):
            _round(busy, plan, rates, cpu)
    figures = [median_figure(group, name, values, "/s", cpu[name]) for name, values in rates.items()]
    return _set_against_peers(figures), []


def _round(targets: Sequence[Target], plan: Plan, rates: dict[str, list[float]], cpu: dict[str, list[float]]) -> None:
    for target in targets:
        target.before()
        meter = Meter(target.pids)
        outcome = burst(target.port, target.path, target.body, clients=plan.clients, seconds=plan.burst_seconds)
        rates[target.name].append(outcome.rate)
        cpu[target.name].append(meter.milliseconds() / outcome.requests)
        target.after()


def _ours(bench: Bench, ours: Ours, embedded: Ours) -> list[Target]:
    """No worker of the service runs, and the embedded one is paused."""
    servers = [ours.process.pid, bench.postgres.process.pid, bench.redis.process.pid]
    here = [embedded.process.pid]
    return [
        Target("ours, noop", ours.port, *NOOP, servers, lambda: ours.pause(False), ours.records.clear),
        Target("ours, compute", ours.port, *COMPUTE, servers, lambda: ours.pause(False), ours.records.clear),
        Target("ours embedded, noop, paused", embedded.port, *NOOP, here, embedded.pause, embedded.records.clear),
        Target("ours embedded, compute, paused", embedded.port, *COMPUTE, here, embedded.pause, embedded.records.clear),
    ]


def _peers(stack: ExitStack, bench: Bench, bare: Sequence[Bare]) -> list[Target]:
    with_backend, without = (stack.enter_context(each.http()) for each in bare)
    redis = bench.redis.process.pid
    first, second = [with_backend.process.pid, redis], [without.process.pid, redis]
    return [
        Target(DELAY, with_backend.port, "/noop", "{}", first, _nothing, bare[0].clear),
        Target(DELAY_FIRE, without.port, "/noop", "{}", second, _nothing, bare[1].clear),
        Target(NOTHING, with_backend.port, "/nothing", "{}", first[:1], _nothing, _nothing),
    ]


def _with_workers(
    stack: ExitStack, bench: Bench, ours: Ours, embedded: Ours, bare: Bare, idle: Sequence[Target]
) -> list[Target]:
    """The same while a worker consumes; what it has not run when the burst ends is taken back."""
    ours.clear()
    stack.enter_context(ours.worker("prefork", 2))
    stack.enter_context(bare.worker("prefork", 2))
    delay = next(target for target in idle if target.name == DELAY)
    pids = [ours.process.pid]

    def on(target: Ours) -> Callable[[], None]:
        return lambda: target.pause(False)

    return [
        Target("ours, noop, worker runs", ours.port, *NOOP, pids, on(ours), ours.clear),
        Target(
            "ours embedded, noop, worker runs",
            embedded.port,
            *NOOP,
            [embedded.process.pid],
            on(embedded),
            embedded.clear,
        ),
        Target(f"{DELAY}, worker runs", delay.port, "/noop", "{}", delay.pids[:1], _nothing, bare.clear),
    ]


def _nothing() -> None:
    pass


def _set_against_peers(figures: list[Figure]) -> list[Figure]:
    figures = compared(figures, "ours, noop", DELAY, at_least=2.5)
    figures = compared(figures, "ours, compute", DELAY, at_least=2.5)
    figures = compared(figures, "ours embedded, noop, paused", DELAY, at_least=2.5)
    figures = compared(figures, "ours embedded, compute, paused", DELAY, at_least=2.5)
    for name in ("ours, noop", DELAY_FIRE):
        figures = [*figures, *_also(figures, name, {"ours, noop": DELAY_FIRE, DELAY_FIRE: DELAY}[name])]
    for name, peer in (("ours, noop", POOL), ("ours, noop", HELD), ("ours, noop", NOTHING)):
        figures = [*figures, *_also(figures, name, peer)]
    figures = compared(figures, "ours, noop, worker runs", f"{DELAY}, worker runs")
    return compared(figures, "ours embedded, noop, worker runs", f"{DELAY}, worker runs")


def _also(figures: Sequence[Figure], name: str, peer: str) -> list[Figure]:
    """The same value once more, against another peer."""
    wanted = [figure for figure in figures if figure.name == name][:1]
    others = [figure for figure in figures if figure.name == peer][:1]
    if not (wanted and others):
        return []
    return compared([replace(wanted[0], aim=None, met=None), others[0]], name, peer)[:1]
