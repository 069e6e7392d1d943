"""What streams cost and how they begin and end (contract, section 4; case C16 a)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import Jobs, statuses
from tests.support.sse import Event, open_stream
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

SLOWEST = {"poll_interval": 60}
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def ids(events: list[Event]) -> list[str | None]:
    return [event.id for event in events]


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(("text", "status"), [("not-a-ulid", 400), ("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", 400), (UNKNOWN, 404)])
def test_a_bad_or_unknown_id_is_refused_before_the_stream_opens(stack: Stack, text: str, status: int) -> None:
    answer = stack.jobs.client.get(f"/api/v1/jobs/{text}/$stream", timeout=5)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["instance"] == f"/api/v1/jobs/{text}/$stream"


@shared(EMBEDDED)
@pytest.mark.parametrize("path", ["/api/v1/jobs/{job}/$stream", "/health/$stream"])
def test_the_poll_interval_has_bounds(stack: Stack, path: str) -> None:
    job = stack.jobs.submit("note")
    stack.jobs.wait(job, "completed")
    path = path.format(job=job)
    for bad in ("0", "-1", "60.1", "nan", "inf", "x", "", "1e9"):
        answer = stack.jobs.client.get(path, params={"poll_interval": bad}, timeout=5)
        assert answer.status_code == 422, bad
        assert answer.json()["errors"]
    for fine in ("0.001", "60", "5e-1"):
        with open_stream(stack.jobs.client, path, params={"poll_interval": fine}) as stream:
            assert stream.response.status_code == 200
            assert stream.next().data is not None


@shared(EMBEDDED, PREFORK)
def test_the_health_stream_tells_the_health_at_once_and_again(stack: Stack) -> None:
    with open_stream(stack.jobs.client, "/health/$stream", params={"poll_interval": 0.1}) as stream:
        assert [stream.next().status for _ in range(3)] == ["healthy"] * 3


@own(PREFORK)
def test_two_api_processes_give_the_same_events(new_stack: NewStack, kind: Kind) -> None:
    """A client that changes over in the middle sees the rest, no more and no less."""
    stack = new_stack(kind, slots=1).start()
    stack.api()
    here, there = (Jobs(api.client) for api in stack.apis)
    held = stack.name()
    job = here.submit("hold", name=held)
    with here.stream(job, params=SLOWEST) as first, there.stream(job, params=SLOWEST) as second:
        for stream in (first, second):
            stream.until(lambda event: event.status == "running", "it runs")
        there.cancel(job)
        for stream in (first, second):
            assert stream.next().status == "canceling"
        stack.journal.release(held)
        ends = [stream.rest() for stream in (first, second)]
    assert [(event.id, event.data) for event in ends[0]] == [(event.id, event.data) for event in ends[1]]
    assert statuses(ends[0]) == ["canceled"]
    with there.stream(job, last_event_id="1-1-0") as stream:
        assert ids(stream.rest()) == ["1-2-0", "1-4-0"]
    with here.stream(job, last_event_id="1-1-0") as stream:
        assert ids(stream.rest()) == ["1-2-0", "1-4-0"]


@pytest.mark.slow
@own(PREFORK)
def test_two_hundred_open_streams_cost_the_database_no_connection(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    held = stack.name()
    job = stack.jobs.submit("hold", name=held)
    stack.journal.wait_start(job)
    with (
        ExitStack() as opened,
        httpx.Client(base_url=stack.apis[0].url, limits=httpx.Limits(max_connections=None)) as c,
    ):
        one = opened.enter_context(open_stream(c, f"/api/v1/jobs/{job}/$stream"))
        one.next()
        idle = stack.database_connections()
        streams = [opened.enter_context(open_stream(c, f"/api/v1/jobs/{job}/$stream")) for _ in range(200)]
        for stream in streams:
            assert stream.next().status == "running"
        wait_until(lambda: stack.database_connections() <= idle + 2, "the streams hold no connections")
        assert len(stack.jobs.list()) == 1
        stack.journal.release(held)
        for stream in streams:
            assert statuses(stream.rest()) == ["completed"]


@own(EMBEDDED, slow=(PREFORK,))
def test_sigterm_ends_open_streams_and_the_process_within_five_seconds(new_stack: NewStack, kind: Kind) -> None:
    """Read from the socket itself, so that half a frame would show."""
    stack = new_stack(kind, slots=1, JOBS_MAX_CONCURRENCY="1", JOBS_SHUTDOWN_TIMEOUT_SECONDS="1").start()
    stack.jobs.change_queue(paused=True)
    job = stack.jobs.submit("note")
    with ExitStack() as opened:
        sockets = [
            opened.enter_context(raw_stream(stack.apis[0].url, f"/api/v1/jobs/{job}/$stream")) for _ in range(20)
        ]
        received = [read_frame(each) for each in sockets]
        began = time.monotonic()
        stack.process.terminate()
        for number, each in enumerate(sockets):
            while chunk := each.recv(65536):
                received[number] += chunk
        stack.process.wait(5 + 5)
        assert time.monotonic() - began < 5 + 1
    for whole in received:
        head, _, body = whole.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        assert body.endswith(b"0\r\n\r\n"), "the answer was cut off"
        text = dechunked(body)
        assert text.endswith("\n\n")
        assert text.count("data:") == 1
    assert stack.process.returncode in (0, -15, 143)


def raw_stream(url: str, path: str, receive_bytes: int | None = None) -> socket.socket:
    where = urlsplit(url)
    connection = socket.socket()
    connection.settimeout(15)
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect((where.hostname or "", where.port or 0))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode())
    return connection


def read_frame(connection: socket.socket) -> bytes:
    """Up to the end of the first event."""
    received = b""
    while b"data:" not in received or not received.endswith(b"\n\n\r\n"):
        chunk = connection.recv(65536)
        assert chunk, received
        received += chunk
    return received


def dechunked(body: bytes) -> str:
    text = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        text, body = text + rest[:length], rest[length + 2 :]
        if not length:
            break
    return text.decode()
