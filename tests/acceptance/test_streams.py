"""Streams of one job (contract, section 4): pushed, complete, and resumed without a gap or a repeat."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.kinds import shared
from tests.support.jobs import statuses
from tests.support.sse import Event
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Stack

SLOWEST = {"poll_interval": 60}
PUSHED_SECONDS = 1.0


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
    whole = ["0-0-0", "1-1-0", "1-3-0", "2-1-0", "2-4-0"]
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
    assert (first.status, first.id) == ("pending", "0-0-0")
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
    path, headers = f"/api/v1/jobs/{job}/$stream", {b"Last-Event-ID": unknown.encode()}
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
