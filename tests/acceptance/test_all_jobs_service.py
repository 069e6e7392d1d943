"""What streams of all jobs cost, with clients that read and clients that do not, and how they end (section 4)."""

from __future__ import annotations

import json
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import groupby

import httpx
import psutil
import pytest
from sqlalchemy import Connection

from celery_jobs.records.cancel import cancel
from celery_jobs.records.ids import JobId
from celery_jobs.records.store import Store
from celery_jobs.records.submit import NewJob, insert_batch
from tests.acceptance.kinds import own
from tests.acceptance.test_all_jobs_stream import PATH, WHOLE, events_of, follow, last_id, until_ended, until_told
from tests.acceptance.test_stream_service import dechunked, raw_stream
from tests.support.jobs import Jobs
from tests.support.sse import open_stream, parse
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

CHANGES = 20_000
MOST_GROWTH_BYTES = 35 << 20  # a process that kept all these events in memory grew by twice that


@pytest.mark.slow
@own(PREFORK)
def test_two_hundred_open_streams_cost_the_database_no_connection(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    limits = httpx.Limits(max_connections=None)
    with ExitStack() as opened, httpx.Client(base_url=stack.apis[0].url, limits=limits) as client:
        opened.enter_context(open_stream(client, PATH))
        idle = stack.database_connections()
        streams = [opened.enter_context(open_stream(client, PATH)) for _ in range(200)]
        job = stack.jobs.submit("noop")
        for stream in streams:
            until_ended(stream, [job])
            assert events_of(stream, job) == WHOLE
        wait_until(lambda: stack.database_connections() <= idle + 2, "the streams hold no connections")


@pytest.mark.slow
@own(PREFORK)
def test_two_api_processes_understand_each_others_ids(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind).start()
    stack.api()
    here, there = (Jobs(api.client) for api in stack.apis)
    held = stack.name()
    with follow(here) as first, follow(there, poll_interval=60) as second:
        job = there.submit("hold", name=held)
        for stream in (first, second):
            until_told(stream, job, "running")
        marks = [last_id(stream) for stream in (first, second)]
        assert events_of(first, job) == events_of(second, job) == ["pending", "running"]
    stack.journal.release(held)
    here.wait(job, "completed")
    for jobs, mark in ((there, marks[0]), (here, marks[1])):
        with follow(jobs, last_event_id=mark) as stream:
            until_ended(stream, [job])
            assert events_of(stream, job) == ["completed"]


@pytest.mark.slow
@own(EMBEDDED, PREFORK)
def test_a_client_that_does_not_read_loses_nothing_and_costs_no_memory(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    process = psutil.Process(stack.process.pid)
    with closing(stalled_stream(stack.apis[0].url)) as stalled, open_stream(stack.jobs.client, PATH) as quick:
        ids = submit_and_cancel(stack, CHANGES // 2)
        until_ended(quick, ids[-1:])  # a process that has never seen such a flood grows anyway
        before = process.memory_info().rss
        ids += submit_and_cancel(stack, CHANGES // 2)
        until_ended(quick, ids[-1:])
        assert process.memory_info().rss - before < MOST_GROWTH_BYTES
        assert stack.jobs.client.get("/readyz", timeout=1).status_code == 200
        told = read_until(stalled, ids[-1])
    everything = {str(job_id): ["pending", "canceled"] for job_id in ids}
    # who catches up may hear again what was being written while others were told of it, and never less
    assert {job: [status for status, _ in groupby(statuses)] for job, statuses in told.items()} == everything
    assert {job: events_of(quick, job) for job in (ids[0], ids[-1])} == dict(list(everything.items())[:: len(ids) - 1])


def submit_and_cancel(stack: Stack, count: int, size: int = 500) -> list[JobId]:
    """Two changes a job, in a queue that nobody serves, straight in the database: faster than any client could."""
    file = stack.service.folder / "data" / "jobs.db"
    store = Store(stack.service.env.get("DATABASE_URL", f"sqlite:///{file}"))
    ids: list[JobId] = []
    for _ in range(count // size):
        batch = [NewJob("nobody.runs_it", "nowhere") for _ in range(size)]

        def work(connection: Connection, batch: list[NewJob] = batch) -> None:
            for job in batch:
                cancel(connection, job.id)

        store.write(insert_batch, batch)
        store.write(work)
        ids += [job.id for job in batch]
    store.close()
    return ids


def stalled_stream(url: str) -> socket.socket:
    """An open stream whose client takes what the kernel takes for it, and that is little."""
    connection = raw_stream(url, PATH, receive_bytes=4096)
    wait_until(lambda: b"keep-alive" in connection.recv(4096, socket.MSG_PEEK), "the stream is open")
    return connection


def read_until(connection: socket.socket, last: str) -> dict[str, list[str | None]]:
    """The statuses told of each job, up to the one in which the last job is told to be canceled."""
    told: dict[str, list[str | None]] = defaultdict(list)
    for event in parse(lines(connection)):
        if event.data is not None:
            told[event.data["id"]].append(event.status)
            if (event.data["id"], event.status) == (last, "canceled"):
                break
    return told


def lines(connection: socket.socket) -> Iterator[str]:
    """The lines of a chunked answer, as they come."""
    with connection.makefile("rb") as file:
        while file.readline() != b"\r\n":
            pass
        rest = b""
        while size := int(file.readline(), 16):
            *whole, rest = (rest + file.read(size)).split(b"\n")
            yield from (line.decode() for line in whole)
            file.readline()


@pytest.mark.slow
@own(PREFORK, slow=(EMBEDDED,))
def test_sigterm_ends_open_streams_at_once_and_with_whole_frames(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_SHUTDOWN_TIMEOUT_SECONDS="1").start()
    with ExitStack() as opened:
        sockets = [opened.enter_context(raw_stream(stack.apis[0].url, PATH)) for _ in range(20)]
        received = [read_to_end_of(each, b"keep-alive") for each in sockets]
        job = stack.jobs.submit("noop")
        stack.jobs.wait(job, "completed")
        for number, each in enumerate(sockets):
            received[number] += read_to_end_of(each, b'"completed"')
        began = time.monotonic()
        stack.process.terminate()
        for number, each in enumerate(sockets):
            while chunk := each.recv(65536):
                received[number] += chunk
        assert time.monotonic() - began < 2.5
        stack.process.wait(5)
    for whole in received:
        body = whole.partition(b"\r\n\r\n")[2]
        assert body.endswith(b"0\r\n\r\n"), "the answer was cut off"
        text = dechunked(body)
        assert text.endswith("\n\n")
        told = [json.loads(line[6:])["status"] for line in text.splitlines() if line.startswith("data: ")]
        assert told == WHOLE


def read_to_end_of(connection: socket.socket, words: bytes) -> bytes:
    received = b""
    while words not in received:
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
    return received


@pytest.mark.slow
@own(EMBEDDED)
def test_a_client_that_does_not_read_does_not_hold_up_the_end(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_SHUTDOWN_TIMEOUT_SECONDS="1").start()
    with closing(stalled_stream(stack.apis[0].url)), open_stream(stack.jobs.client, PATH) as quick:
        ids = submit_and_cancel(stack, 5000)
        until_ended(quick, ids[-1:])
        stack.process.terminate()
        stack.process.wait(5)
