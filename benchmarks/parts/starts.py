"""From sending the POST to the first line of the task, on an idle system, one after the other."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.clients.wire import Connection, request_bytes
from benchmarks.figures import Figure, Measured, beside, spread
from benchmarks.plan import Plan
from benchmarks.stand.peers import Bare, Endpoints
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers

GROUP = "POST to first start, idle, sequential"
PEER = "delay() and bare Celery"
AIM_MS = 15.0
_PAUSE_SECONDS = 0.02
_numbers = itertools.count(1)


def measure(bench: Bench, plan: Plan) -> Measured:
    """Every target in turn, so that other load on the machine hits them alike."""
    with ExitStack() as stack:
        targets: dict[str, Callable[[int], float]] = {}
        for pool, slots in (("prefork", 2), ("threads", 8)):
            ours = stack.enter_context(ours_on_servers(bench))
            stack.enter_context(ours.worker(pool, slots))
            targets[f"ours, {pool} worker"] = _sender(stack, bench, ours, "/api/v1/tasks/mark")
        targets["ours embedded"] = _sender(
            stack, bench, stack.enter_context(ours_embedded(bench)), "/api/v1/tasks/mark"
        )
        bare = Bare(bench, backend=True)
        stack.enter_context(bare.worker("prefork", 2))
        targets[PEER] = _sender(stack, bench, stack.enter_context(bare.http()), "/mark")
        milliseconds = _in_turn(targets, plan.starts)
    return _figures(milliseconds), []


def _sender(stack: ExitStack, bench: Bench, server: Ours | Endpoints, path: str) -> Callable[[int], float]:
    connection = Connection(server.port)
    stack.callback(connection.close)

    def send(number: int) -> float:
        """Milliseconds."""
        request = request_bytes(server.port, path, f'{{"n": {number}}}')
        sent = time.time()
        status, body = connection.send(request)
        if status != 202:
            raise AssertionError(f"POST {path} was answered {status}: {body.decode()}")
        return (bench.marks.wait(number) - sent) * 1e3

    return send


def _in_turn(targets: dict[str, Callable[[int], float]], count: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in targets}
    warm_up = 3
    for turn in range(count + warm_up):
        for name, send in targets.items():
            value = send(next(_numbers))
            if turn >= warm_up:
                times[name].append(value)
            time.sleep(_PAUSE_SECONDS)
    return times


def _figures(times: dict[str, list[float]]) -> list[Figure]:
    figures: list[Figure] = []
    for name, values in times.items():
        figures += spread(GROUP, name, values, p50=None if name == PEER else AIM_MS)
    for name in times:
        if name != PEER:
            figures = beside(figures, name, PEER)
    return figures
