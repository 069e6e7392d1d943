"""Many open requests at once, streams or long waits, in a process of its own: when the news of each end arrived.

    python -m benchmarks.clients.follow

Reads an order as one line of JSON from its input, `{"port", "paths", "headers"}`; writes `{"open": N}` when all are
open and `{"ends": [[arrived, finished, status], …], …}` when all have ended; then the next. While the news
comes it only notes the time: what it says is looked at afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import uvloop

from benchmarks.clients.wire import End, complete, end_in, request_bytes, status_of

_PATIENCE_SECONDS = 240.0
_CLOCKS_APART_MS = 2.0  # SQLite counts whole milliseconds
_AT_ONCE = 50  # connections that are opened together


class _Follower(asyncio.Protocol):
    def __init__(self, request: bytes, held: bool) -> None:
        loop = asyncio.get_running_loop()
        self._request, self._held = request, held
        self._pieces: list[tuple[float, bytes]] = []
        self._transport: asyncio.Transport
        self._chunked = False
        self.open: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport.write(self._request)
        if self._held:  # nothing comes back before the end
            self.open.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._pieces.append((time.time(), data))
        if len(self._pieces) == 1:
            self._chunked = b"\r\ntransfer-encoding: chunked" in data.lower()
        if not self.open.done() and b"data:" in data:
            self.open.set_result(None)
        # the last chunk may come alone
        over = data == b"0\r\n\r\n" or data.endswith(b"\r\n0\r\n\r\n")
        if over or (not self._chunked and complete(self._received())):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.open, self.ended):
            if not future.done():
                future.set_result(None)

    def end(self) -> End | None:
        """What it was told of the end; None when the answer was no success or did not say."""
        if not self._pieces or status_of(self._pieces[0][1]) != 200:
            return None
        ends = (end_in(data, arrived) for arrived, data in self._pieces)
        # looked at together where the news was cut in two
        return next(filter(None, ends), None) or end_in(self._received(), self._pieces[-1][0])

    def _received(self) -> bytes:
        return b"".join(data for _, data in self._pieces)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def _carry_out(port: int, paths: Sequence[str], headers: Mapping[str, str]) -> None:
    loop = asyncio.get_running_loop()
    followers: list[_Follower] = []
    for start in range(0, len(paths), _AT_ONCE):
        made = [
            loop.create_connection(
                lambda path=path: _Follower(request_bytes(port, path, "", "GET", headers), bool(headers)),
                "127.0.0.1",
                port,
            )
            for path in paths[start : start + _AT_ONCE]
        ]
        followers += [follower for _, follower in await asyncio.gather(*made)]
        await asyncio.wait([follower.open for follower in followers], timeout=_PATIENCE_SECONDS)
    _say(open=sum(not follower.ended.done() for follower in followers))
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.wait([follower.ended for follower in followers], timeout=_PATIENCE_SECONDS)
    used, took = time.process_time() - cpu, time.perf_counter() - began
    ends = [follower.end() for follower in followers]
    _say(ends=[(end.arrived, end.finished, end.status) for end in ends if end], cpu_seconds=used, seconds=took)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        await _carry_out(order["port"], order["paths"], order["headers"])


@dataclass(frozen=True)
class Ends:
    """What the followers saw, and the processor time of their process, from all open to all ended."""

    ends: list[End]
    cpu_seconds: float
    seconds: float

    def delays_ms(self) -> list[float]:
        """From the end in the record to its news at the client; AssertionError when the clocks do not agree."""
        delays = [(end.arrived - end.finished) * 1e3 for end in self.ends]
        if min(delays) < -_CLOCKS_APART_MS:
            raise AssertionError(f"news came {-min(delays):.1f} ms before its end: the clocks do not agree")
        return delays

    def client(self) -> str:
        """What the client itself cost: it must not be what is slow."""
        each = self.cpu_seconds / len(self.ends) * 1e3
        return f"the client used {self.cpu_seconds / self.seconds:.1%} of a core, {each:.3f} ms for each answer"


class Followers:
    """The process, seen from the benchmark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._wanted = 0

    def open(self, port: int, paths: Sequence[str], headers: Mapping[str, str] | None = None) -> None:
        """Open one request for each path; AssertionError if some were answered at once. Headers make them waits."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"port": port, "paths": paths, "headers": headers or {}}) + "\n")
        self._process.stdin.flush()
        self._wanted = len(paths)
        if (seen := self._told()["open"]) != self._wanted:
            raise AssertionError(f"{seen} of {self._wanted} requests like {paths[0]} stayed open")

    def ends(self) -> Ends:
        """When all have ended; AssertionError unless each was told of a success."""
        told = self._told()
        ends = [End(*each) for each in told["ends"]]
        bad = [end.status for end in ends if end.status not in ("completed", "SUCCESS")]
        if bad or len(ends) != self._wanted:
            raise AssertionError(f"{len(ends)} of {self._wanted} requests told of an end; not of success: {bad[:5]}")
        return Ends(ends, told["cpu_seconds"], told["seconds"])

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError("the program that follows streams has ended")
        return json.loads(line)


@contextmanager
def followers() -> Generator[Followers]:
    """The process until the end of the `with`."""
    command = [sys.executable, "-m", "benchmarks.clients.follow"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield Followers(process)
    finally:
        process.kill()
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
