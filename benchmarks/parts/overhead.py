"""What the service adds to a job: from sending the POST to the news of its end, less the time that its code took.

Ours: the 202, then the job's stream until its terminal event. The peer: a client that asks every 0.5 s. The code sleeps
and says itself how long that took; the naps differ, so that the peer's polls meet the ends at every distance.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.clients.wire import Connection, request_bytes
from benchmarks.figures import Figure, Measured, beside, spread
from benchmarks.plan import Plan
from benchmarks.stand.peers import Bare, Endpoints
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers
from benchmarks.subjects.work import POLL_SECONDS

GROUP = "POST to the news of the end, less the job's own time, idle, sequential"
PEER = f"delay() endpoint, polled every {POLL_SECONDS:g} s"
AIM_MS = 10.0
_SHORTEST_SECONDS = 0.05
_GOLDEN = 0.618034  # its multiples fall evenly between 0 and 1, however many there are
_PAUSE_SECONDS = 0.02
_WARM_UP = 3
Run = Callable[[float], float]  # from the seconds of a nap to the overhead in milliseconds


def measure(bench: Bench, plan: Plan) -> Measured:
    """Every target in turn, so that other load on the machine hits them alike."""
    with ExitStack() as stack:
        targets: dict[str, Run] = {}
        for pool, slots in (("prefork", 2), ("threads", 8)):
            ours = stack.enter_context(ours_on_servers(bench))
            stack.enter_context(ours.worker(pool, slots))
            targets[f"ours, {pool}"] = _streamed(stack, ours)
        targets["ours embedded"] = _streamed(stack, stack.enter_context(ours_embedded(bench)))
        bare = Bare(bench, backend=True)
        stack.enter_context(bare.worker("prefork", 2))
        targets[PEER] = _polled(stack, stack.enter_context(bare.http()))
        times = _in_turn(targets, plan)
    figures: list[Figure] = []
    for name, values in times.items():
        figures += spread(GROUP, name, values, p50=None if name == PEER else AIM_MS)
    for name in times:
        figures = figures if name == PEER else beside(figures, name, PEER)
    return figures, []


def _in_turn(targets: dict[str, Run], plan: Plan) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in targets}
    for turn in range(plan.naps + _WARM_UP):
        for name, run in targets.items():
            # ours does not depend on the length, so it naps as shortly as the shortest
            phase = (turn * _GOLDEN) % 1 * POLL_SECONDS if name == PEER else 0.0
            value = run(_SHORTEST_SECONDS + phase)
            if turn >= _WARM_UP:
                times[name].append(value)
            time.sleep(_PAUSE_SECONDS)
    return times


def _submit(connection: Connection, port: int, path: str, seconds: float) -> tuple[float, str]:
    """When the POST was sent, and the job's id."""
    request = request_bytes(port, path, json.dumps({"seconds": seconds}))
    connection.fresh()
    sent = time.time()
    status, body = connection.send(request)
    if status != 202:
        raise AssertionError(f"POST {path} was answered {status}: {body.decode()}")
    return sent, json.loads(body)["job_id"]


def _streamed(stack: ExitStack, ours: Ours) -> Run:
    submits, streams = Connection(ours.port), Connection(ours.port)
    for connection in (submits, streams):
        stack.callback(connection.close)

    def run(seconds: float) -> float:
        streams.fresh()
        sent, job_id = _submit(submits, ours.port, "/api/v1/tasks/nap", seconds)
        end = streams.follow(request_bytes(ours.port, f"/api/v1/jobs/{job_id}/$stream", "", "GET"))
        if end.status != "completed":
            raise AssertionError(f"the job ended {end.status}")
        result = json.loads(ours.call("GET", f"/api/v1/jobs/{job_id}/$result", ""))["result"]
        return (end.arrived - sent - result) * 1e3

    return run


def _polled(stack: ExitStack, peer: Endpoints) -> Run:
    connection = Connection(peer.port)
    stack.callback(connection.close)

    def run(seconds: float) -> float:
        sent, task_id = _submit(connection, peer.port, "/nap", seconds)
        request = request_bytes(peer.port, f"/status/{task_id}", "", "GET")
        while (seen := json.loads(connection.send(request)[1]))["status"] != "SUCCESS":
            time.sleep(POLL_SECONDS)
        return (time.time() - sent - seen["result"]) * 1e3

    return run
