"""Streams of one job (contract, section 4): pushed, resumable, complete, cheap, and clean at the end (case C16 a)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import Jobs, statuses
from tests.support.sse import Event, open_stream
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

SLOWEST = {"poll_interval": 60}
PUSHED_SECONDS = 1.0
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def events_of(stack: Stack, job: str, **options: Any) -> list[Event]:
    with stack.jobs.stream(job, **options) as stream:
        return stream.rest()


def ids(events: list[Event]) -> list[str | None]:
    return [event.id for event in events]


@shared(EMBEDDED, PREFORK, SQLITE)
def test_headers_and_the_current_state_come_at_once(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    with stack.jobs.stream(job, params=SLOWEST, silence=5) as stream:
        headers = stream.response.headers
        assert stream.response.status_code == 200
        assert headers["content-type"].partition(";")[0] == "text/event-stream"
        assert headers["cache-control"] == "no-cache"
        assert headers["connection"] == "keep-alive"
        assert headers["x-accel-buffering"] == "no"
        event = stream.next()
        assert (event.status, event.id, event.name) == ("running", "1-1-0", None)
        assert event.data is not None
        assert event.data["id"] == job
        assert event.data["started_at"] is not None
        stack.journal.release(name)


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_every_change_is_pushed_when_it_happens(stack: Stack) -> None:
    """With a poll interval of a minute only a push explains a change that comes within a second."""
    name = stack.name()
    busy = [stack.jobs.submit("hold", name=name) for _ in range(stack.slots)]
    for each in busy:
        stack.journal.wait_start(each)
    held = stack.name()
    job = stack.jobs.submit("hold", name=held)
    with stack.jobs.stream(job, params=SLOWEST) as stream:
        assert stream.next().status == "pending"
        stack.journal.release(name)
        assert stream.next().status == "running"
        assert time.time() - stack.journal.wait_start(job).at < PUSHED_SECONDS
        stack.journal.release(held)
        assert stream.next().status == "completed"
        assert time.time() - stack.journal.wait_end(job).at < PUSHED_SECONDS
        assert stream.rest() == []


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_an_interrupted_stream_resumes_with_no_gap_and_no_repeat(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("retrying", name=name, failures=1)
    stack.jobs.wait(job, "completed")
    last = events_of(stack, job)
    assert statuses(last) == ["completed"]
    whole = ["1-0-0", "1-1-0", "1-3-0", "2-1-0", "2-4-0"]
    assert last[-1].id == whole[-1]
    for number in range(2, 5):  # of the running attempt all, in order; of the attempt before at least no repeat
        tail = events_of(stack, job, last_event_id=whole[number - 1])
        assert ids(tail) == whole[number:], f"after {whole[number - 1]}"
        assert statuses(tail)[-1] == "completed"


@shared(EMBEDDED, PREFORK)
def test_a_stream_cut_after_each_event_goes_on_with_the_next(stack: Stack) -> None:
    held = stack.name()
    job = stack.jobs.submit("hold", name=held)
    stack.journal.wait_start(job)
    got: list[Event] = []
    steps: list[Callable[[], object]] = [
        lambda: stack.jobs.cancel(job),
        lambda: stack.journal.release(held),
        lambda: None,
    ]
    for step in steps:
        with stack.jobs.stream(job, params=SLOWEST, last_event_id=got[-1].id if got else None) as stream:
            got.append(stream.next())
        step()
        if step is steps[1]:
            stack.jobs.wait(job, "canceled")
    assert [(event.status, event.id) for event in got] == [
        ("running", "1-1-0"),
        ("canceling", "1-2-0"),
        ("canceled", "1-4-0"),
    ]


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_no_status_is_skipped_for_a_client_that_was_away(stack: Stack) -> None:
    name = stack.name()
    busy = [stack.jobs.submit("hold", name=name) for _ in range(stack.slots)]
    for each in busy:
        stack.journal.wait_start(each)
    job = stack.jobs.submit("note")
    with stack.jobs.stream(job) as stream:
        first = stream.next()
    assert (first.status, first.id) == ("pending", "1-0-0")
    stack.journal.release(name)
    record = stack.jobs.wait(job, "completed")
    events = events_of(stack, job, last_event_id=first.id)
    assert [(event.status, event.id) for event in events] == [("running", "1-1-0"), ("completed", "1-4-0")]
    running, completed = events[0].data, events[1].data
    assert running is not None
    assert completed is not None
    assert (running["started_at"], running["finished_at"]) == (record["started_at"], None)
    assert completed["finished_at"] == record["finished_at"]


@shared(EMBEDDED, PREFORK)
def test_no_status_of_fast_jobs_is_skipped(stack: Stack) -> None:
    for _ in range(15):
        job = stack.jobs.submit("noop")
        seen = statuses(events_of(stack, job))
        everything = ["pending", "running", "completed"]
        assert seen == everything[everything.index(str(seen[0])) :]


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(("task", "status"), [("note", "completed"), ("raising", "failed")])
def test_a_browser_that_saw_the_end_is_told_to_stop(stack: Stack, task: str, status: str) -> None:
    job = stack.jobs.submit(task)
    stack.jobs.wait(job, status)
    (event,) = events_of(stack, job)
    assert event.status == status
    answer = stack.jobs.client.get(f"/api/v1/jobs/{job}/$stream", headers={"Last-Event-ID": str(event.id)})
    assert (answer.status_code, answer.content) == (204, b"")
    stack.jobs.delete(job)
    gone = stack.jobs.client.get(f"/api/v1/jobs/{job}/$stream", headers={"Last-Event-ID": str(event.id)})
    assert gone.status_code == 404


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize("unknown", ["9-4-0", "abc", "1-1", "-1-0-0", "1-9-0", "0-4-0", "1-4-7", "é", "1-0-0-0"])
def test_an_event_id_that_the_job_does_not_know_gives_the_current_state(stack: Stack, unknown: str) -> None:
    job = stack.jobs.submit("note")
    stack.jobs.wait(job, "completed")
    path, headers = f"/api/v1/jobs/{job}/$stream", {"Last-Event-ID": unknown.encode()}
    with stack.jobs.client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line.startswith("data:")]
    assert [json.loads(line[5:])["status"] for line in lines] == ["completed"]


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_the_stream_of_a_deleted_job_says_so_and_ends(stack: Stack) -> None:
    job = stack.jobs.submit("hold_async", name=stack.name())
    stack.journal.wait_start(job)
    with stack.jobs.stream(job, params=SLOWEST) as stream:
        assert stream.next().status == "running"
        stack.jobs.delete(job)
        events = stream.rest()
    assert [event.data for event in events][-1] == {"status": "deleted"}
    assert statuses(events) in (["deleted"], ["canceling", "deleted"], ["canceling", "canceled", "deleted"])


@shared(EMBEDDED, PREFORK)
def test_progress_is_streamed(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("stepping", name=name, steps=2)
    with stack.jobs.stream(job, params=SLOWEST) as stream:
        for step in (1, 2):
            event = stream.until(lambda e, step=step: _current(e) == step, f"step {step} is told")
            assert event.data is not None
            assert event.data["progress"] == {"current": step, "total": 2, "message": f"step {step}"}
            assert event.status == "running"
            stack.journal.release(f"{name}-{step}")
        events = stream.rest()
    assert statuses(events)[-1] == "completed"
    numbers = [event.id for event in stream.seen if event.id]
    assert len(numbers) == len(set(numbers))


def _current(event: Event) -> object:
    return ((event.data or {}).get("progress") or {}).get("current")


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


def connections(url: str) -> int:
    """How many others use this database."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchone()
    return row[0] if row else 0


@own(PREFORK)
def test_two_hundred_open_streams_cost_the_database_no_connection(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    held = stack.name()
    job = stack.jobs.submit("hold", name=held)
    stack.journal.wait_start(job)
    url = stack.service.env["DATABASE_URL"]
    with ExitStack() as opened, httpx.Client(base_url=stack.apis[0].url, limits=httpx.Limits(max_connections=None)) as c:
        one = opened.enter_context(open_stream(c, f"/api/v1/jobs/{job}/$stream"))
        one.next()
        idle = connections(url)
        streams = [opened.enter_context(open_stream(c, f"/api/v1/jobs/{job}/$stream")) for _ in range(200)]
        for stream in streams:
            assert stream.next().status == "running"
        wait_until(lambda: connections(url) <= idle + 2, "the streams hold no connections")
        assert len(stack.jobs.list()) == 1
        stack.journal.release(held)
        for stream in streams:
            assert statuses(stream.rest()) == ["completed"]


@own(EMBEDDED, PREFORK)
def test_sigterm_ends_open_streams_and_the_process_within_five_seconds(new_stack: NewStack, kind: Kind) -> None:
    """Read from the socket itself, so that half a frame would show."""
    stack = new_stack(kind, slots=1, JOBS_MAX_CONCURRENCY="1", JOBS_SHUTDOWN_TIMEOUT_SECONDS="1").start()
    stack.jobs.change_queue(paused=True)
    job = stack.jobs.submit("note")
    with ExitStack() as opened:
        sockets = [opened.enter_context(raw_stream(stack.apis[0].url, f"/api/v1/jobs/{job}/$stream")) for _ in range(20)]
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


def raw_stream(url: str, path: str) -> socket.socket:
    where = urlsplit(url)
    connection = socket.create_connection((where.hostname or "", where.port or 0), timeout=15)
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
