"""Clients that come and go by the hundred (case C16 b): nothing of them stays behind in the service."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil
import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import statuses
from tests.support.raw import connect, get
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.waiting import GaveUp, wait_until

NewStack = Callable[..., Stack]

STREAMS = WAITS = 500
ARRIVE_WITHIN_SECONDS = 2.0
BACK_WITHIN_SECONDS = 30.0
MOST_GROWTH_BYTES = 2_000_000
MOST_FLOODS = 5
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: closing sends RST


@dataclass(frozen=True)
class Footprint:
    """What the API process holds."""

    descriptors: int
    connections: int  # of clients
    threads: int
    database: int
    streams: int

    def within(self, other: Footprint) -> bool:
        """No more than the other, but for what a pool may keep for the next request."""
        return (
            self.descriptors <= other.descriptors + 5
            and self.connections <= other.connections
            and self.threads <= other.threads + 5
            and self.database <= other.database + 2
            and self.streams <= other.streams
        )


def footprint(stack: Stack) -> Footprint:
    process, port = psutil.Process(stack.process.pid), urlsplit(stack.apis[0].url).port
    return Footprint(
        descriptors=process.num_fds(),
        connections=sum(each.laddr.port == port and bool(each.raddr) for each in process.net_connections("tcp")),
        threads=process.num_threads(),
        database=stack.database_connections(),
        streams=open_streams(stack),
    )


def open_streams(stack: Stack) -> int:
    text = stack.jobs.client.get("/metrics").text
    found = re.search(r"^sse_streams(?:\{.*\})? ([0-9.]+)$", text, re.MULTILINE)
    assert found, text[:2000]
    return int(float(found[1]))


def memory(stack: Stack) -> int:
    return psutil.Process(stack.process.pid).memory_info().rss


def complaints(stack: Stack) -> list[str]:
    """Lines of the log that speak of an error."""
    log = "\n".join(process.log for process in [stack.process, *stack.workers])
    return [line for line in log.splitlines() if re.search(r"error|traceback|exception|never retrieved", line, re.I)]


class Visitor:
    """A client that asks, listens for a while, and is gone without a word."""

    def __init__(self, url: str, random: random.Random) -> None:
        self._url = url
        self._random = random

    async def visit(self, path: str, *headers: str, stays_seconds: tuple[float, float] = (0.1, 2.0)) -> int:
        """How many bytes came."""
        await asyncio.sleep(self._random.uniform(0, ARRIVE_WITHIN_SECONDS))
        reader, writer = await connect(self._url)
        writer.write(get(self._url, path, *headers))
        received = 0
        try:
            async with asyncio.timeout(self._random.uniform(*stays_seconds)):
                while chunk := await reader.read(65536):
                    received += len(chunk)
        except TimeoutError:
            pass
        self._leave(writer)
        return received

    async def dribble(self, path: str) -> None:
        """Sends its request a few bytes at a time, and may leave in the middle."""
        _reader, writer = await connect(self._url)
        request = get(self._url, path, "Accept: text/event-stream")
        for start in range(0, self._random.randint(1, len(request) + 20), 3):
            writer.write(request[start : start + 3])
            await asyncio.sleep(0.002)
        self._leave(writer)

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        if self._random.random() < 0.5:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        else:
            writer.close()


async def flood(url: str, jobs: Sequence[str], streams: int, waits: int, dribbles: int = 0) -> list[int | None]:
    """All within a few seconds; how many bytes each got."""
    visitor, path = Visitor(url, random.Random(20)), "/api/v1/jobs/{}".format
    visits = [visitor.visit(f"{path(jobs[number % len(jobs)])}/$stream") for number in range(streams)]
    visits += [visitor.visit(path(jobs[number % len(jobs)]), "Prefer: wait=60") for number in range(waits)]
    visits += [visitor.dribble(f"{path(jobs[0])}/$stream") for _ in range(dribbles)]  # type: ignore[misc]
    return await asyncio.gather(*visits)


def warmed_up(stack: Stack, jobs: Sequence[str]) -> Footprint:
    """After enough visits that pools, caches and buffers have grown to their size, and all of them have left."""
    idle = footprint(stack)
    asyncio.run(flood(stack.apis[0].url, jobs, STREAMS, WAITS, dribbles=100))

    def alone() -> bool:
        now = footprint(stack)
        return now.streams == 0 and now.connections <= idle.connections

    wait_until(alone, "the first visitors are gone", BACK_WITHIN_SECONDS, interval=0.5)
    return footprint(stack)


def settles(stack: Stack, before: Footprint, within_seconds: float = BACK_WITHIN_SECONDS) -> None:
    try:
        wait_until(lambda: footprint(stack).within(before), "nothing is left", within_seconds, interval=0.5)
    except GaveUp as error:
        error.add_note(f"before: {before}\nnow:    {footprint(stack)}")
        raise


@pytest.mark.slow
@own(PREFORK, slow=(EMBEDDED,))
@pytest.mark.timeout(240)
def test_nothing_is_left_of_clients_that_were_cut_off(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=4).start()
    held = [stack.name() for _ in range(4)]
    jobs = [stack.jobs.submit("hold", name=name) for name in held]
    for job in jobs:
        stack.journal.wait_start(job)
    before, complaints_before = warmed_up(stack, jobs), complaints(stack)
    grown = MOST_GROWTH_BYTES
    for _ in range(MOST_FLOODS):  # what is kept for the next visitors stops growing, a leak does not
        if grown < MOST_GROWTH_BYTES:
            break
        bytes_before = memory(stack)
        received = asyncio.run(flood(stack.apis[0].url, jobs, STREAMS, WAITS))
        assert any(received[:STREAMS]), "no stream said anything before it was cut"
        assert not any(received[STREAMS:]), "a wait was answered before the job had ended"
        settles(stack, before)
        grown = memory(stack) - bytes_before
    assert grown < MOST_GROWTH_BYTES
    assert complaints(stack) == complaints_before
    works(stack, jobs, held)


def works(stack: Stack, jobs: Sequence[str], held: Sequence[str]) -> None:
    """The jobs that were watched end, and a new stream delivers."""
    stack.journal.release(*held)
    for job in jobs:
        stack.jobs.wait(job, "completed")
    stack.jobs.change_queue(paused=True)
    job = stack.jobs.submit("note")
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "pending"
        stack.jobs.change_queue(paused=False)
        assert statuses(stream.rest())[-1] == "completed"


@own(EMBEDDED, slow=(PREFORK,))
@pytest.mark.timeout(240)
def test_nothing_is_left_of_requests_that_never_became_whole(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    [held] = [stack.name()]
    job = stack.jobs.submit("hold", name=held)
    stack.journal.wait_start(job)
    before, complaints_before = warmed_up(stack, [job]), complaints(stack)
    asyncio.run(flood(stack.apis[0].url, [job], 0, 0, dribbles=200))
    settles(stack, before)
    assert complaints(stack) == complaints_before
    works(stack, [job], [held])
