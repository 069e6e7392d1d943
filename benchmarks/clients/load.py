"""A load generator that costs little beside a server: raw HTTP/1.1 on kept connections, in a process of its own.

    python -m benchmarks.clients.load PORT PATH BODY --clients 32 --seconds 3   (or --requests 2000)

Prints one JSON object: requests, seconds, rate, p50_ms, p99_ms, statuses, cpu_share (of this process).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import cast

import uvloop

from benchmarks.clients.wire import complete, request_bytes, status_of

_PATIENCE_SECONDS = 60.0


@dataclass
class Tally:
    """What the clients share: when to stop, and what they saw."""

    request: bytes
    seconds: float | None
    left: int | None
    deadline: float | None = None
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def take(self) -> bool:
        """True when one more request shall be sent."""
        if self.seconds is not None:
            self.deadline = self.deadline or time.perf_counter() + self.seconds  # counted from the first request
            if time.perf_counter() >= self.deadline:
                return False
        if self.left is not None:
            self.left -= 1
            return self.left >= 0
        return True


class _Client(asyncio.Protocol):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._data = b""
        self._sent = 0.0
        self._transport: asyncio.Transport
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._next()

    def _next(self) -> None:
        if self._tally.take():
            self._sent = time.perf_counter()
            self._transport.write(self._tally.request)
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if complete(self._data):
            self._tally.latencies.append(time.perf_counter() - self._sent)
            self._tally.statuses[status_of(self._data)] += 1
            self._data = b""
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass(frozen=True)
class Outcome:
    """What a burst of requests came to; `began` is wall-clock time."""

    began: float
    requests: int
    seconds: float
    rate: float
    p50_ms: float
    p99_ms: float
    statuses: dict[int, int]
    cpu_share: float


async def _run(port: int, clients: int, tally: Tally) -> Outcome:
    loop = asyncio.get_running_loop()
    began, start, cpu = time.time(), time.perf_counter(), time.process_time()
    made = await asyncio.gather(
        *(loop.create_connection(lambda: _Client(tally), "127.0.0.1", port) for _ in range(clients))
    )
    await asyncio.wait([client.ended for _, client in made], timeout=_PATIENCE_SECONDS)
    seconds = time.perf_counter() - start
    times = sorted(tally.latencies) or [0.0]
    return Outcome(
        began=began,
        requests=len(tally.latencies),
        seconds=seconds,
        rate=len(tally.latencies) / seconds,
        p50_ms=statistics.median(times) * 1e3,
        p99_ms=times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3,
        statuses=dict(tally.statuses),
        cpu_share=(time.process_time() - cpu) / seconds,
    )


def burst(
    port: int,
    path: str,
    body: str = "{}",
    *,
    clients: int = 32,
    seconds: float | None = None,
    requests: int | None = None,
) -> Outcome:
    """Run the generator in a process of its own; AssertionError when an answer was no success."""
    limit = ["--requests", str(requests)] if requests is not None else ["--seconds", str(seconds)]
    command = [
        sys.executable,
        "-m",
        "benchmarks.clients.load",
        str(port),
        path,
        body,
        "--clients",
        str(clients),
        *limit,
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_PATIENCE_SECONDS + 30)
    fields = json.loads(run.stdout)
    fields["statuses"] = {int(status): number for status, number in fields["statuses"].items()}
    outcome = Outcome(**fields)
    if not outcome.requests or any(status >= 300 for status in outcome.statuses):
        raise AssertionError(f"POST {path} was answered {outcome.statuses}")
    return outcome


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients.load")
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("body")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--requests", type=int)
    options = parser.parse_args()
    tally = Tally(request_bytes(options.port, options.path, options.body), options.seconds, options.requests)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(_run(options.port, options.clients, tally)))))


if __name__ == "__main__":
    main()
