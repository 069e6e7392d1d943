"""How quick a server's other calls are while something large goes on: one of each kind every few milliseconds.

    python -m benchmarks.clients.probe PORT '{"record": ["GET", "/jobs/1"], …}'

Asks until its input ends, then prints {name: [milliseconds, …]}.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvloop

from benchmarks.clients.wire import complete, request_bytes, status_of

_PAUSE_SECONDS = 0.005
Calls = Mapping[str, tuple[str, str]]  # name -> method, path


async def _ask(port: int, method: str, path: str, over: asyncio.Event) -> list[float]:
    """One after the other on a kept connection, with a pause after each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = request_bytes(port, path, "{}" if method == "POST" else "", method)
    times: list[float] = []
    while not over.is_set():
        sent = time.perf_counter()
        writer.write(request)
        data = b""
        while not complete(data):
            received = await reader.read(65536)
            if not received:
                raise ConnectionError("the server closed the connection")
            data += received
        times.append((time.perf_counter() - sent) * 1e3)
        if status_of(data) >= 300:
            raise AssertionError(f"{method} {path} was answered {status_of(data)}")
        await asyncio.sleep(_PAUSE_SECONDS)
    writer.close()
    return times


async def _ask_all(port: int, calls: Calls) -> dict[str, list[float]]:
    over = asyncio.Event()
    asked = [asyncio.create_task(_ask(port, method, path, over)) for method, path in calls.values()]
    print(flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    over.set()
    return dict(zip(calls, await asyncio.gather(*asked), strict=True))


@dataclass
class Asked:
    """How long each kind of call took, once the `with` has ended; milliseconds."""

    times: dict[str, list[float]] = field(default_factory=dict)


@contextmanager
def probing(port: int, calls: Calls) -> Generator[Asked]:
    """Ask in a process of its own until the end of the `with`; AssertionError when an answer was no success."""
    asked = Asked()
    command = [sys.executable, "-m", "benchmarks.clients.probe", str(port), json.dumps(calls)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout
        process.stdout.readline()  # it asks
        yield asked
        told, _ = process.communicate(timeout=60)
        if process.returncode:
            raise AssertionError("a call failed meanwhile; what it was stands above")
        asked.times = json.loads(told)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_ask_all(int(sys.argv[1]), json.loads(sys.argv[2])))))
