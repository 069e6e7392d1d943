"""Many who wait at once (case C11): others notice nothing, the database does not either, and all are told at once."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import PREFIX, good
from tests.support.raw import connect, get
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.strict import strict
from tests.support.waiting import wait_until_async

NewStack = Callable[..., Stack]

STREAMS = WAITS = 100
ROUNDS = 40
SHORT_SECONDS = 1.0
POOL = 6  # connections that a process may keep once it has needed them, however many wait
TOLD_WITHIN_SECONDS = 1.0 * 5  # the machine has other work


class Waiter:
    """One request that is answered when a job ends: a stream, or a wait."""

    def __init__(self, url: str, job: str, streams: bool) -> None:
        self._url = url
        self._path = f"{PREFIX}/{job}/$stream" if streams else f"{PREFIX}/{job}"
        self._headers = () if streams else ("Prefer: wait=60",)
        self.received = b""
        self.told_at = 0.0

    async def wait(self) -> None:
        reader, writer = await connect(self._url)
        writer.write(get(self._url, self._path, *self._headers))
        while not self.told:
            chunk = await reader.read(65536)
            assert chunk, self.received
            self.received += chunk
        self.told_at = time.time()
        writer.close()

    @property
    def told(self) -> bool:
        """True when it knows of the end of the job."""
        return b'"completed"' in self.received

    def late_seconds(self) -> float:
        found = re.findall(rb'"finished_at":"([^"]+)"', self.received)
        return self.told_at - datetime.fromisoformat(found[-1].decode()).timestamp()


@asynccontextmanager
async def all_waiting(stack: Stack, jobs: list[str]) -> AsyncGenerator[list[Waiter]]:
    """A hundred streams and a hundred waits, open until all are answered."""
    url = stack.apis[0].url
    waiters = [Waiter(url, jobs[number % len(jobs)], number < STREAMS) for number in range(STREAMS + WAITS)]

    async def all_open() -> bool:
        return all(waiter.received for waiter in waiters[:STREAMS]) and await connections(stack) >= STREAMS + WAITS

    async with asyncio.TaskGroup() as group:
        for waiter in waiters:
            group.create_task(waiter.wait())
        await wait_until_async(all_open, "all wait", 30)
        yield waiters


async def connections(stack: Stack) -> int:
    """How many clients the API process has."""
    port = urlsplit(stack.apis[0].url).port
    found = psutil.Process(stack.process.pid).net_connections("tcp")
    return sum(each.laddr.port == port and bool(each.raddr) for each in found)


async def timed(url: str) -> dict[str, list[float]]:
    """How long the short requests take, again and again."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        return await timed_with(client)


async def timed_with(client: httpx.AsyncClient) -> dict[str, list[float]]:
    asked: dict[str, Callable[[], Any]] = {
        "list": lambda: client.get(PREFIX),
        "page": lambda: client.get(PREFIX, params={"limit": 10}),
        "submit": lambda: client.post("/api/v1/tasks/sample.noop", json={}),
        "health": lambda: client.get("/health"),
    }
    took: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(ROUNDS):
        for name, ask in asked.items():
            began = time.monotonic()
            good(await ask())
            took[name].append(time.monotonic() - began)
    return took


@own(EMBEDDED, PREFORK)
async def test_two_hundred_who_wait_cost_the_others_nothing_and_are_told_at_once(
    new_stack: NewStack, kind: Kind
) -> None:
    stack = new_stack(kind, slots=4).start()
    held = [stack.name() for _ in range(3)]
    jobs = [stack.jobs.submit("hold", name=name) for name in held]
    for job in jobs:
        stack.journal.wait_start(job)
    idle = stack.database_connections()
    async with all_waiting(stack, jobs) as waiters:
        took = await timed(stack.apis[0].url)
        busy = stack.database_connections()
        assert not any(waiter.told for waiter in waiters)
        stack.journal.release(*held)
    for name, seconds in took.items():
        assert sorted(seconds)[int(len(seconds) * 0.95)] < SHORT_SECONDS, (name, sorted(seconds)[-5:])
    assert max(waiter.late_seconds() for waiter in waiters) < TOLD_WITHIN_SECONDS
    assert busy <= idle + POOL


HONOURED = [
    ["wait=1"],
    ['wait="1"'],
    ["WAIT=1"],
    ["Wait = 1"],
    ["wait=01"],
    ["wait=1; foo"],
    ["wait=1;foo=bar; wait=5"],
    [", ,wait=1,,"],
    ["respond-async, wait=1"],
    ["foo;bar=1, wait=1"],
    ['foo="a, wait=x", wait=1'],
    ['foo="a\\", wait=x", wait=1'],
    ["wait=1, wait=abc"],
    ["foo", "wait=1"],
    ["wait=1", "wait=0"],
    ["handling=lenient", "", "wait=1"],
    ["wait=60"],
    ["wait=999999999999999999999"],
    ["wait=" + "9" * 3_000],
    ["a=" + "x" * 3_000 + ", wait=1"],
]
IGNORED = [
    ["wait"],
    ["wait="],
    ['wait=""'],
    ["wait=-1"],
    ["wait=+1"],
    ["wait=abc"],
    ["wait=1e9"],
    ["wait=1.5"],
    ["wait=1 2"],
    ["wait=0x1"],
    ["wait=inf"],
    ["wait=abc, wait=1"],
    ['wait="1'],
    ["wait==1"],
    ["wait:1"],
    ["await=1"],
    ["wait1"],
    ["foo; wait=1"],
    ['"wait=1"'],
    ["respond-async"],
    [""],
    [",,,;;;==="],
    ["\xb2".encode("latin-1")],
    [b"wait=\xb2"],
    ["wait=٣".encode()],
    ["x" * 8_192],
    ['"' * 8_191],
    ["," * 8_192],
    ['a="' * 2_500],
]


@pytest.fixture(scope="module")
def waiting(start_stack: NewStack) -> Stack:
    """A service that lets nobody wait for longer than a second."""
    return start_stack(EMBEDDED, JOBS_LONG_POLL_MAX_WAIT_SECONDS="1")


def ask(stack: Stack, prefer: list[str | bytes], path: str, method: str = "GET") -> tuple[httpx.Response, float]:
    headers = [(b"Prefer", each if isinstance(each, bytes) else each.encode()) for each in prefer]
    began = time.monotonic()
    json_body = {"json": {"name": "never"}} if method == "POST" else {}
    answer = stack.jobs.client.request(method, path, headers=headers, timeout=20, **json_body)  # type: ignore[arg-type]
    strict(answer.content)
    return answer, time.monotonic() - began


def test_a_preference_is_read_in_any_spelling_and_its_wait_is_bounded(waiting: Stack) -> None:
    job = waiting.jobs.submit("hold", name=waiting.name())
    waiting.journal.wait_start(job)
    with ThreadPoolExecutor(len(HONOURED)) as pool:
        answers = list(pool.map(lambda prefer: ask(waiting, [*prefer], f"{PREFIX}/{job}"), HONOURED))
    for prefer, (answer, seconds) in zip(HONOURED, answers, strict=True):
        assert good(answer, 200).json()["status"] == "running", prefer
        assert answer.headers["preference-applied"] == "wait", prefer
        assert 0.9 < seconds < 10, prefer
    answer, _ = ask(waiting, ["wait=0"], f"{PREFIX}/{job}")
    assert good(answer, 200).headers["preference-applied"] == "wait"
    waiting.release_all()


def test_an_odd_preference_is_as_if_it_were_not_there(waiting: Stack) -> None:
    job = waiting.jobs.submit("hold", name=waiting.name())
    waiting.journal.wait_start(job)
    for prefer in IGNORED:
        for path in (f"{PREFIX}/{job}", f"{PREFIX}/{job}/$result"):
            answer, _ = ask(waiting, [*prefer], path)
            assert good(answer, 200).json()["status"] == "running", prefer
            assert "preference-applied" not in answer.headers, prefer
    waiting.release_all()


def test_a_submit_takes_any_preference(waiting: Stack) -> None:
    waiting.jobs.change_queue(paused=True)
    for prefer in [*IGNORED, ["wait=0"], *HONOURED[:3]]:
        answer, _ = ask(waiting, [*prefer], "/api/v1/tasks/sample.hold", "POST")
        assert good(answer, 202).json()["job_id"], prefer
        waiting.jobs.delete(answer.json()["job_id"])
    waiting.jobs.change_queue(paused=False)
