"""Requests that are still open when the service must end are answered, not broken off (contract, section 3)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import psutil

from tests.acceptance.kinds import own
from tests.support.stack import EMBEDDED, SQLITE, Kind, Stack
from tests.support.waiting import wait_until


@own(EMBEDDED, SQLITE)
def test_a_request_that_waits_for_the_database_is_told_that_the_service_ends(
    new_stack: Callable[..., Stack], kind: Kind
) -> None:
    stack = new_stack(kind).start(worker=False)
    client = httpx.Client(base_url=stack.apis[0].url, timeout=30)  # with a connection of its own
    before = connections(stack)
    path = stack.database_url.removeprefix("sqlite:///")
    with client, closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(2) as pool:
        other.execute("BEGIN IMMEDIATE")
        submit = pool.submit(client.post, "/api/v1/tasks/sample.note", json={})
        wait_until(lambda: connections(stack) > before, "the submit has reached the service", 10)
        for _ in range(3):  # what came later was answered, so it waits for the database now
            assert stack.jobs.client.get("/livez").status_code == 200
        stack.process.terminate()
        answer = submit.result(10)
        other.execute("ROLLBACK")
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    assert "may take effect or not" in answer.json()["detail"]  # the lock is gone before the process is
    began = time.monotonic()
    assert stack.process.wait(20) == 0
    assert time.monotonic() - began < 15
    assert "Exception in ASGI" not in stack.process.log


def connections(stack: Stack) -> int:
    """How many clients of the service are connected."""
    port = httpx.URL(stack.apis[0].url).port
    open_ones = psutil.Process(stack.process.pid).net_connections("tcp")
    return sum(1 for each in open_ones if each.status == "ESTABLISHED" and each.laddr and each.laddr[1] == port)
