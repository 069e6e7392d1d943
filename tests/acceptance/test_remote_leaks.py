"""Remote workers that give up waiting by the hundred (case C16 b): nothing of them stays behind or is taken."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.acceptance.kinds import own
from tests.acceptance.test_leaks import footprint
from tests.support.raw import connect
from tests.support.remote import PREFIX, Json, Remote
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.waiting import wait_until

BACK_WITHIN_SECONDS = 30.0
MOST_KEPT = 25  # connections to the database that are kept for the next requests
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: closing sends RST


def requests(stack: Stack, worker: Remote, task: Json) -> list[bytes]:
    """A claim and a look, which wait for a minute each."""
    host = urlsplit(stack.apis[0].url).netloc
    body = b'{"worker_id": "%s"}' % str(worker.worker_id).encode()
    claim = f"POST {PREFIX}/tasks/claim HTTP/1.1\r\nHost: {host}\r\nPrefer: wait=60\r\n"
    claim += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    look = f"GET {PREFIX}/tasks/{task['id']} HTTP/1.1\r\nHost: {host}\r\nPrefer: wait=60\r\n\r\n"
    return [claim.encode() + body, look.encode()]


async def visit(url: str, request: bytes, chance: random.Random) -> bytes:
    """What came before the client was gone without a word."""
    _, writer = await connect(url)
    writer.write(request)
    received = b""
    await asyncio.sleep(chance.uniform(0.1, 2.0))
    if chance.random() < 0.5:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()
    else:
        writer.close()
    return received


async def flood(stack: Stack, asked: list[bytes], many: int) -> None:
    chance = random.Random(21)
    await asyncio.gather(*(visit(stack.apis[0].url, asked[number % 2], chance) for number in range(many)))


@own(EMBEDDED, PREFORK)
@pytest.mark.parametrize("many", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_waits_that_are_given_up_leave_nothing_behind(new_stack: Callable[..., Stack], kind: Kind, many: int) -> None:
    stack = new_stack(kind).start(worker=False)
    worker, job = Remote(stack.apis[0].client).serving()
    task = worker.at_state(job, "running")
    asked = requests(stack, worker, task)
    idle = footprint(stack)
    asyncio.run(flood(stack, asked, many))

    def back() -> bool:
        now = footprint(stack)
        kept = now.descriptors - idle.descriptors, now.database - idle.database
        return now.connections <= idle.connections and max(kept) <= MOST_KEPT and now.threads <= idle.threads + 5

    wait_until(back, f"it is as before: {idle}", BACK_WITHIN_SECONDS, interval=0.2)
    waiting = worker.submit(job)
    claimed = worker.claim(wait=10)
    assert claimed is not None
    assert claimed["id"] == waiting["id"]
    assert "Traceback" not in stack.process.log


def test_a_claim_whose_worker_has_left_before_the_service_reads_it_takes_nothing(
    new_stack: Callable[..., Stack],
) -> None:
    """A service that had no time for a while finds requests whose clients have given up."""
    stack = new_stack(PREFORK).start(worker=False)
    other = stack.api()
    worker, job = Remote(other.client).serving()
    claim, _ = requests(stack, worker, {"id": ""})
    where = urlsplit(stack.apis[0].url)
    for _ in range(5):
        stack.process.stop()
        with socket.create_connection((str(where.hostname), where.port or 80)) as gone:
            gone.sendall(claim)
        task = worker.submit(job)
        stack.process.cont()
        wait_until(lambda: footprint(stack).connections <= 1, "it has seen that the client left", 20)
        claimed = worker.claim(wait=10)
        assert claimed is not None, worker.task(task)
        assert claimed["id"] == task["id"]
        worker.report(task, "running")
