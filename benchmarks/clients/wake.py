"""Many who wait for remote tasks, woken one task after the other, in a process: how late they are told.

    python -m benchmarks.clients.wake KIND PORT VIA WAITERS ROUNDS

They wait at PORT; what wakes them is said at VIA. KIND: `claims` (waiting claims, a submit wakes one), `ends` (each
waits for a task of its own, a report wakes one), `shared` (all wait for one task, a report wakes them all). Prints
{"waiting": N}, then {"sent": […], "answered": […]}: milliseconds to the waiter's answer since what woke it was sent and
since that was answered. With no rounds they wait until the input ends.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvloop

from benchmarks.clients.raw import COMPLETED, PAYLOAD, REMOTE, RUNNING, SUBMIT, Caller, id_in, new_worker

_WAIT = {"Prefer": "wait=60"}
_SETTLED_SECONDS = 0.5
_PAUSE_SECONDS = 0.02
_PATIENCE_SECONDS = 300.0


@dataclass
class Woken:
    """Milliseconds from the wake's sending, and from its answer (negative: it was told before that)."""

    sent: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)

    def add(self, sent: float, answered: float, *arrived: float) -> None:
        """Of one wake."""
        self.sent += [(each - sent) * 1e3 for each in arrived]
        self.answered += [(each - answered) * 1e3 for each in arrived]


class _Claims:
    """Waiting claims."""

    def __init__(self, port: int, via: int) -> None:
        self._port, self._via = port, via
        self._absent = 0
        self._all_wait = asyncio.Event()
        self._took: asyncio.Queue[float] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, waiters: int) -> None:
        """All wait."""
        self._absent = waiters
        self._submitter = await Caller.connected(self._via)
        for _ in range(waiters):
            caller = await Caller.connected(self._port)
            self._tasks.append(asyncio.create_task(self._wait(caller, await new_worker(caller))))

    async def once(self, woken: Woken) -> None:
        """A submit, and the answer to the one who gets it."""
        await self._all_wait.wait()
        await asyncio.sleep(_PAUSE_SECONDS)
        sent = time.perf_counter()
        answered, _ = await self._submitter.call("POST", SUBMIT, PAYLOAD)
        woken.add(sent, answered, await asyncio.wait_for(self._took.get(), _PATIENCE_SECONDS))

    async def _wait(self, caller: Caller, worker_id: str) -> None:
        body_sent = f'{{"worker_id": "{worker_id}"}}'
        while True:
            self._absent -= 1
            if not self._absent:
                self._all_wait.set()
            arrived, body = await caller.call("POST", f"{REMOTE}/tasks/claim", body_sent, _WAIT)
            self._absent += 1
            self._all_wait.clear()
            if task_id := id_in(body):
                self._took.put_nowait(arrived)
                for report in (RUNNING, COMPLETED):
                    await caller.call("PATCH", f"{REMOTE}/tasks/{task_id}", report % worker_id)


class _Ends:
    """Waits for the ends of tasks, by one for each task or by all for one."""

    def __init__(self, port: int, via: int, *, shared: bool) -> None:
        self._port, self._via, self._shared = port, via, shared
        self._places: list[tuple[str, list[asyncio.Task[float]]]] = []
        self._callers: list[Caller] = []

    async def begin(self, waiters: int) -> None:
        """All wait."""
        self._driver = await Caller.connected(self._via)
        self._worker = await new_worker(self._driver)
        self._callers = [await Caller.connected(self._port) for _ in range(waiters)]
        for group in [self._callers] if self._shared else [[each] for each in self._callers]:
            await self._enter(group)

    async def once(self, woken: Woken) -> None:
        """A report, and the answers to those who wait for it; then they wait for the next task."""
        await asyncio.sleep(_SETTLED_SECONDS if self._shared else _PAUSE_SECONDS)
        task_id, waiting = self._places.pop(0)
        sent = time.perf_counter()
        answered, _ = await self._driver.call("PATCH", f"{REMOTE}/tasks/{task_id}", COMPLETED % self._worker)
        woken.add(sent, answered, *await asyncio.wait_for(asyncio.gather(*waiting), _PATIENCE_SECONDS))
        await self._enter(self._callers if self._shared else [self._callers[0]])

    async def _enter(self, callers: list[Caller]) -> None:
        if not self._shared:
            self._callers = [each for each in self._callers if each not in callers] + callers
        await self._driver.call("POST", SUBMIT, PAYLOAD)
        _, body = await self._driver.call("POST", f"{REMOTE}/tasks/claim", f'{{"worker_id": "{self._worker}"}}')
        task_id = id_in(body)
        await self._driver.call("PATCH", f"{REMOTE}/tasks/{task_id}", RUNNING % self._worker)
        self._places.append((task_id, [asyncio.create_task(_end(caller, task_id)) for caller in callers]))


async def _end(caller: Caller, task_id: str) -> float:
    while True:
        arrived, body = await caller.call("GET", f"{REMOTE}/tasks/{task_id}", headers=_WAIT)
        if b'"status":"completed"' in body:
            return arrived


async def _run(kind: str, port: int, via: int, waiters: int, rounds: int) -> None:
    room = _Claims(port, via) if kind == "claims" else _Ends(port, via, shared=kind == "shared")
    await room.begin(waiters)
    await asyncio.sleep(_SETTLED_SECONDS)
    print(json.dumps({"waiting": waiters}), flush=True)
    if not rounds:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        return
    woken = Woken()
    await _repeat(room.once, woken, rounds)
    print(json.dumps(woken.__dict__), flush=True)


async def _repeat(once: Callable[[Woken], Awaitable[None]], woken: Woken, rounds: int) -> None:
    for _ in range(3):
        await once(Woken())  # connections and caches of the server
    for _ in range(rounds):
        await once(woken)


def wake(kind: str, port: int, via: int, waiters: int, rounds: int) -> Woken:
    """Run it in a process of its own; AssertionError when a call failed."""
    command = _command(kind, port, via, waiters, rounds)
    run = subprocess.run(command, check=False, stdout=subprocess.PIPE, timeout=_PATIENCE_SECONDS)
    if run.returncode:
        raise AssertionError("a call failed while many waited; what it was stands above")
    return Woken(**json.loads(run.stdout.splitlines()[1]))


@contextmanager
def waiting(kind: str, port: int, waiters: int) -> Generator[None]:
    """So many wait until the end of the `with`."""
    process = subprocess.Popen(_command(kind, port, port, waiters, 0), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        if not process.stdout.readline():
            raise AssertionError("a call failed while many began to wait; what it was stands above")
        yield
        if process.poll() is not None:
            raise AssertionError("a call failed while many waited; what it was stands above")
    finally:
        process.kill()
        process.communicate()


def _command(kind: str, port: int, via: int, waiters: int, rounds: int) -> list[str]:
    return [
        *(sys.executable, "-m", "benchmarks.clients.wake", kind),
        *(str(each) for each in (port, via, waiters, rounds)),
    ]


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(sys.argv[1], *(int(each) for each in sys.argv[2:6])))
