"""`Prefer: wait=N`: how late the answer is after the end, for one waiter and for many, and a submit that waits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.clients.follow import Ends, Followers, followers
from benchmarks.clients.wire import Connection, request_bytes
from benchmarks.figures import Figure, Measured, beside, spread
from benchmarks.plan import Plan
from benchmarks.stand.peers import Bare, Endpoints
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers

GET = "GET with Prefer: wait, the end in the record to the answer"
POST = "POST with Prefer: wait to the answer with the result, no-op, idle, sequential"
PEER = "endpoint that returns delay().get()"
WAITERS = (1, 50, 200)
_NAP_SECONDS, _NAP_MORE_SECONDS = 0.15, 0.003  # the second for each waiter: all are open long before the end
_PAUSE_SECONDS = 0.02
_WARM_UP = 3
_FEWEST_JOBS = 3


def measure(bench: Bench, plan: Plan) -> Measured:
    """The submits in turn, so that other load hits them alike; then the waiters of each service."""
    notes: list[str] = []
    with ExitStack() as stack:
        services: dict[str, Ours] = {}
        for pool, slots in (("prefork", 2), ("threads", 8)):
            ours = services[f"ours, {pool}"] = stack.enter_context(ours_on_servers(bench))
            stack.enter_context(ours.worker(pool, slots))
        services["ours embedded"] = stack.enter_context(ours_embedded(bench))
        bare = Bare(bench, backend=True)
        stack.enter_context(bare.worker("prefork", 2))
        peer = stack.enter_context(bare.http())
        targets = {name: _submitter(stack, ours, "/api/v1/tasks/noop") for name, ours in services.items()}
        targets[PEER] = _submitter(stack, peer, "/wait")
        figures = _submits(targets, plan.waits)
        following = stack.enter_context(followers())
        for name in ("ours, prefork", "ours embedded"):
            for waiters in WAITERS:
                figures += _woken(name, services[name], following, waiters, plan, notes)
    return figures, notes


def _submits(targets: dict[str, Callable[[], float]], count: int) -> list[Figure]:
    times: dict[str, list[float]] = {name: [] for name in targets}
    for turn in range(count + _WARM_UP):
        for name, submit in targets.items():
            value = submit()
            if turn >= _WARM_UP:
                times[name].append(value)
            time.sleep(_PAUSE_SECONDS)
    figures = [figure for name, values in times.items() for figure in spread(POST, name, values)]
    for name in times:
        figures = figures if name == PEER else beside(figures, name, PEER)
    return figures


def _submitter(stack: ExitStack, server: Ours | Endpoints, path: str) -> Callable[[], float]:
    connection = Connection(server.port)
    stack.callback(connection.close)
    headers = {} if isinstance(server, Endpoints) else {"Prefer": "wait=10"}
    request = request_bytes(server.port, path, headers=headers)

    def submit() -> float:
        """Milliseconds."""
        connection.fresh()
        sent = time.perf_counter()
        status, body = connection.send(request)
        milliseconds = (time.perf_counter() - sent) * 1e3
        if status != 200 or "result" not in json.loads(body):
            raise AssertionError(f"POST {path} was answered {status}: {body.decode()}")
        return milliseconds

    return submit


def _woken(name: str, ours: Ours, following: Followers, waiters: int, plan: Plan, notes: list[str]) -> list[Figure]:
    """So many wait for one job, and again for the next, until there are enough answers."""
    body = json.dumps({"seconds": _NAP_SECONDS + _NAP_MORE_SECONDS * waiters})

    def once() -> Ends:
        job_id = json.loads(ours.call("POST", "/api/v1/tasks/nap", body))["job_id"]
        following.open(ours.port, [f"/api/v1/jobs/{job_id}"] * waiters, {"Prefer": "wait=30"})
        return following.ends()

    jobs = max(_FEWEST_JOBS, min(plan.waits // 2, plan.wakes // waiters))
    rounds = [once() for _ in range(jobs)]
    if waiters == max(WAITERS):
        notes.append(f"Waits, {name}, {waiters} waiting: {rounds[-1].client()}.")
    return spread(GET, f"{name}, {waiters} waiting", [delay for ends in rounds for delay in ends.delays_ms()])
