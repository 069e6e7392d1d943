"""Remote workers that cost little beside a server: claim, running, completed, on kept connections, in a process.

    python -m benchmarks.clients.pull PORT TASKS WORKERS

Each has an id of its own. They take TASKS tasks, which were submitted before; then prints a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

import uvloop

from benchmarks.clients.raw import COMPLETED, REMOTE, RUNNING, Caller, id_in, new_worker

_PATIENCE_SECONDS = 300.0


@dataclass
class _Shared:
    left: int
    claims: list[float] = field(default_factory=list)
    reports: list[float] = field(default_factory=list)
    empty: int = 0


@dataclass(frozen=True)
class Pulled:
    """What the workers came to; times in milliseconds, `empty`: claims that found nothing too early."""

    seconds: float
    claims: list[float]
    reports: list[float]
    empty: int
    cpu_share: float


async def _work(caller: Caller, worker_id: str, shared: _Shared) -> None:
    claim = f'{{"worker_id": "{worker_id}"}}'
    running, completed = RUNNING % worker_id, COMPLETED % worker_id
    while shared.left > 0:
        shared.left -= 1
        sent = time.perf_counter()
        arrived, body = await caller.call("POST", f"{REMOTE}/tasks/claim", claim)
        shared.claims.append((arrived - sent) * 1e3)
        if not (task_id := id_in(body)):
            shared.left += 1
            shared.empty += 1
            continue
        for report in (running, completed):
            sent = time.perf_counter()
            arrived, _ = await caller.call("PATCH", f"{REMOTE}/tasks/{task_id}", report)
            shared.reports.append((arrived - sent) * 1e3)


async def _run(port: int, tasks: int, workers: int) -> Pulled:
    callers = [await Caller.connected(port) for _ in range(workers)]
    ids = [await new_worker(caller) for caller in callers]
    shared = _Shared(tasks)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_work(caller, each, shared) for caller, each in zip(callers, ids, strict=True)))
    seconds = time.perf_counter() - began
    share = (time.process_time() - cpu) / seconds
    for caller, each in zip(callers, ids, strict=True):
        await caller.call("DELETE", f"{REMOTE}/workers/{each}")
        caller.close()
    return Pulled(seconds, shared.claims, shared.reports, shared.empty, share)


def pull(port: int, tasks: int, workers: int) -> Pulled:
    """Run them in a process of their own; AssertionError when an answer was no success."""
    command = [sys.executable, "-m", "benchmarks.clients.pull", str(port), str(tasks), str(workers)]
    run = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE_SECONDS)
    if run.returncode:
        raise AssertionError("a call of a remote worker failed; what it was stands above")
    return Pulled(**json.loads(run.stdout))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(_run(*(int(each) for each in sys.argv[1:4]))))))
