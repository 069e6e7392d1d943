"""Many open streams on one process: how late the news of an end is, and what streams cost on which nothing happens.

The peer's streams are what people write: an endpoint that polls the result every 0.5 s in the thread pool.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.clients.follow import Ends, Followers, followers
from benchmarks.clients.wire import Connection, request_bytes
from benchmarks.figures import Figure, Measured, beside, bounded, compared, spread
from benchmarks.plan import Plan
from benchmarks.stand.cpu import Meter
from benchmarks.stand.peers import Bare
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers
from benchmarks.subjects.work import POLL_SECONDS

NEWS = "{:,} open streams, the end in the record to the news at the client"
IDLE = "processor seconds per 1,000 stream-seconds, nothing happens"
PEER = f"SSE endpoint that polls every {POLL_SECONDS:g} s"
AIM_MS, AIM_SECONDS = 50.0, 0.05
_SLOTS = 2
_NAP_SECONDS = 0.05  # with two slots, some 35 ends a second
_SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Side:
    """A service with a worker of two slots; `pids` are what spends processor time, by the name it is reported under."""

    name: str
    port: int
    submit_path: str
    stream_path: str  # with {} for the id
    hold: Callable[[], None]  # no job starts
    release: Callable[[], None]
    pids: Mapping[str, int]


def measure(bench: Bench, plan: Plan) -> Measured:
    """Ours with a worker and embedded, and the peer."""
    figures: list[Figure] = []
    notes: list[str] = []
    with followers() as following:
        for enter in (_prefork, _embedded, _peer):
            with ExitStack() as stack:
                _measure(enter(stack, bench), following, plan, figures, notes)
    for name in ("ours, prefork", "ours embedded"):
        for where in ("one job each", "all on one job"):
            figures = beside(figures, f"{name}, {where}", f"{PEER}, {where}")
        figures = compared(figures, f"{name}: API process", f"{PEER}: API process")
    return figures, notes


def _prefork(stack: ExitStack, bench: Bench) -> Side:
    ours = stack.enter_context(ours_on_servers(bench))
    stack.enter_context(ours.worker("prefork", _SLOTS))
    return _side("ours, prefork", ours, {"API process": ours.process.pid, "PostgreSQL": bench.postgres.process.pid})


def _embedded(stack: ExitStack, bench: Bench) -> Side:
    ours = stack.enter_context(ours_embedded(bench, JOBS_CONCURRENCY=str(_SLOTS)))
    return _side("ours embedded", ours, {"API process": ours.process.pid})


def _side(name: str, ours: Ours, pids: Mapping[str, int]) -> Side:
    stream = "/api/v1/jobs/{}/$stream"
    return Side(name, ours.port, "/api/v1/tasks/nap", stream, ours.pause, lambda: ours.pause(False), pids)


def _peer(stack: ExitStack, bench: Bench) -> Side:
    bare = Bare(bench, backend=True)
    stack.enter_context(bare.worker("prefork", _SLOTS))
    http = stack.enter_context(bare.http())
    pids = {"API process": http.process.pid, "Redis": bench.redis.process.pid}
    hold, release = (lambda word=word: bare.control(word) for word in ("cancel_consumer", "add_consumer"))
    return Side(PEER, http.port, "/nap", "/stream/{}", hold, release, pids)


def _measure(side: Side, following: Followers, plan: Plan, figures: list[Figure], notes: list[str]) -> None:
    group = NEWS.format(plan.streams)
    side.hold()
    paths = [side.stream_path.format(job_id) for job_id in _submitted(side, plan.streams)]
    figures += _idle(side, f"{side.name}, no stream", plan.idle_seconds / 2, plan.streams, aim=None)
    following.open(side.port, paths)
    aim = None if side.name == PEER else AIM_SECONDS
    figures += _idle(side, side.name, plan.idle_seconds, plan.streams, aim)
    ends = [_released(side, following)]
    aim = None if side.name == PEER else AIM_MS
    figures += spread(group, f"{side.name}, one job each", ends[0].delays_ms(), p99=aim)
    for _ in range(plan.shared):
        side.hold()
        path = side.stream_path.format(*_submitted(side, 1))
        following.open(side.port, [path] * plan.streams)
        time.sleep(_SETTLE_SECONDS)
        ends.append(_released(side, following))
    delays = [delay for each in ends[1:] for delay in each.delays_ms()]
    figures += spread(group, f"{side.name}, all on one job", delays, p99=aim)
    notes += [f"Streams, {side.name}, one job each: {ends[0].client()}."]
    notes += [f"Streams, {side.name}, all on one job: {ends[-1].client()}."]


def _released(side: Side, following: Followers) -> Ends:
    side.release()
    return following.ends()


def _submitted(side: Side, count: int) -> list[str]:
    connection = Connection(side.port)
    request = request_bytes(side.port, side.submit_path, json.dumps({"seconds": _NAP_SECONDS}))
    try:
        return [json.loads(connection.send(request)[1])["job_id"] for _ in range(count)]
    finally:
        connection.close()


def _idle(side: Side, name: str, seconds: float, streams: int, aim: float | None) -> list[Figure]:
    """What each process uses while nothing happens, spread over this many streams."""
    time.sleep(_SETTLE_SECONDS)
    meters = {process: Meter([pid]) for process, pid in side.pids.items()}
    began = time.monotonic()
    time.sleep(seconds)
    stream_seconds = streams * (time.monotonic() - began)
    return [
        bounded(
            Figure(IDLE, f"{name}: {process}", meter.milliseconds() / stream_seconds, "s"),
            aim if process == "API process" else None,
        )
        for process, meter in meters.items()
    ]
