"""The stream of all jobs (contract, section 4): from now on or from a watermark, every status of each job that fits."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.acceptance.kinds import shared
from tests.support.jobs import TERMINAL, Jobs
from tests.support.sse import Event, Stream, open_stream
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Stack

PATH = "/api/v1/jobs/$stream"
WHOLE = ["pending", "running", "completed"]
PUSHED_SECONDS = 1.0


def follow(jobs: Jobs, last_event_id: str | None = None, **params: Any) -> AbstractContextManager[Stream]:
    return open_stream(jobs.client, PATH, params=params, last_event_id=last_event_id)


def events_of(stream: Stream, job: str) -> list[str | None]:
    """The statuses that were told of a job so far."""
    return [event.status for event in stream.seen if event.data and event.data["id"] == job]


def until_ended(stream: Stream, jobs: Iterable[str]) -> None:
    """Reads until each of these jobs was told to have ended."""
    left = set(jobs)

    def last_one_ended(event: Event) -> bool:
        if event.data is not None and event.status in TERMINAL:
            left.discard(event.data["id"])
        return not left

    stream.until(last_one_ended, "all jobs are told to have ended", 60)


def until_told(stream: Stream, job: str, status: str) -> Event:
    def accept(event: Event) -> bool:
        return event.data is not None and (event.data["id"], event.status) == (job, status)

    return stream.until(accept, f"{job} is told to be {status}")


@shared(EMBEDDED, PREFORK, slow=(SQLITE,))
def test_it_begins_with_the_next_change_and_shows_a_job_as_the_list_does(stack: Stack) -> None:
    old = stack.jobs.submit("note")
    stack.jobs.wait(old, "completed")
    with follow(stack.jobs) as stream:
        headers = stream.response.headers
        assert stream.response.status_code == 200
        assert headers["content-type"].partition(";")[0] == "text/event-stream"
        assert (headers["cache-control"], headers["connection"]) == ("no-cache", "keep-alive")
        assert headers["x-accel-buffering"] == "no"
        job = stack.jobs.submit("raising", params={"tag": ["a", "b"]})
        event = until_told(stream, job, "failed")
        assert (event.name, event.id is None) == (None, False)
        assert events_of(stream, old) == []
        assert events_of(stream, job) == ["pending", "running", "failed"]
    assert [event.data] == [record for record in stack.jobs.list() if record["id"] == job]
    pending, running, _ = (event.data or {} for event in stream.seen if event.data)
    assert (pending["attempt"], pending["started_at"], pending["tags"]) == (0, None, ["a", "b"])
    assert (running["attempt"], running["finished_at"], running["error"]) == (1, None, None)


@shared(EMBEDDED, slow=(PREFORK, SQLITE))
def test_two_hundred_jobs_are_each_told_as_pending_running_and_completed_once(stack: Stack) -> None:
    with follow(stack.jobs) as stream:
        jobs = [stack.jobs.submit("noop") for _ in range(200)]
        until_ended(stream, jobs)
        assert {job: events_of(stream, job) for job in jobs} == dict.fromkeys(jobs, WHOLE)


@shared(EMBEDDED, PREFORK, slow=(SQLITE,))
def test_every_change_is_pushed_when_it_happens(stack: Stack) -> None:
    """With a poll interval of a minute only a push explains a change that comes within a second."""
    held = stack.name()
    with follow(stack.jobs, poll_interval=60) as stream:
        job = stack.jobs.submit("hold", name=held)
        until_told(stream, job, "pending")
        until_told(stream, job, "running")
        assert time.time() - stack.journal.wait_start(job).at < PUSHED_SECONDS
        stack.journal.release(held)
        until_told(stream, job, "completed")
        assert time.time() - stack.journal.wait_end(job).at < PUSHED_SECONDS


@shared(EMBEDDED, PREFORK, slow=(SQLITE,))
def test_cancelling_and_deleting_are_told(stack: Stack) -> None:
    held = stack.name()
    with follow(stack.jobs) as stream:
        running = stack.jobs.submit("hold", name=held)
        until_told(stream, running, "running")
        stack.jobs.cancel(running)
        until_told(stream, running, "canceling")
        stack.journal.release(held)
        until_told(stream, running, "canceled")
        done = stack.jobs.submit("note")
        until_told(stream, done, "completed")
        for job in (running, done):
            stack.jobs.delete(job)
            assert until_told(stream, job, "deleted").data == {"id": job, "status": "deleted"}
    assert events_of(stream, running) == ["pending", "running", "canceling", "canceled", "deleted"]
    assert events_of(stream, done) == [*WHOLE, "deleted"]


@shared(EMBEDDED, PREFORK)
def test_a_retry_and_progress_are_told(stack: Stack) -> None:
    name = stack.name()
    with follow(stack.jobs) as stream:
        again = stack.jobs.submit("retrying", name=name, failures=1)
        stepping = stack.jobs.submit("stepping", name=name, steps=2)
        for step in (1, 2):
            stream.until(lambda event, step=step: _current(event) == step, f"step {step} is told")
            stack.journal.release(f"{name}-{step}")
        until_ended(stream, [job for job in (again, stepping) if "completed" not in events_of(stream, job)])
        assert events_of(stream, again) == ["pending", "running", "pending", "running", "completed"]
        told = events_of(stream, stepping)
    assert (told[0], told[-1], set(told[1:-1])) == ("pending", "completed", {"running"})


def _current(event: Event) -> object:
    return ((event.data or {}).get("progress") or {}).get("current")


FAILING = ["pending", "running", "failed"]


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"status_filter": "completed"}, {"plain": ["completed"], "tagged": ["completed"], "other": ["completed"]}),
        ({"status_filter": "failed"}, {"failing": ["failed"]}),
        ({"task": "sample.noop"}, {"plain": WHOLE, "tagged": WHOLE}),
        ({"queue": "other"}, {"other": WHOLE}),
        ({"tag": "red"}, {"tagged": WHOLE, "failing": FAILING}),
        ({"tag": ["red", "blue"]}, {"tagged": WHOLE}),
        ({"tag": ["red"], "status_filter": "running"}, {"tagged": ["running"], "failing": ["running"]}),
        ({"submitted_before": "2100-01-01T00:00:00Z", "task": "sample.raising"}, {"failing": FAILING}),
    ],
    ids=str,
)
def test_only_what_fits_is_told(stack: Stack, chosen: dict[str, Any], expected: dict[str, list[str]]) -> None:
    name = stack.name()
    stack.journal.release(name)
    with follow(stack.jobs, **chosen) as stream:
        jobs = {
            "plain": stack.jobs.submit("noop"),
            "tagged": stack.jobs.submit("noop", params={"tag": ["red", "blue"]}),
            "failing": stack.jobs.submit("raising", params={"tag": "red"}),
            "other": stack.jobs.submit("elsewhere", name=name),
        }
        for job in jobs.values():
            stack.jobs.wait(job, *TERMINAL)
        last = jobs[next(iter(expected))]
        stack.jobs.delete(last)  # told whatever status the client asked for, and after all that came before
        until_told(stream, last, "deleted")
    told = {key: events_of(stream, job) for key, job in jobs.items() if events_of(stream, job)}
    assert told == {key: statuses + (["deleted"] if jobs[key] == last else []) for key, statuses in expected.items()}


@shared(EMBEDDED, PREFORK)
def test_the_time_of_submission_is_a_filter_too(stack: Stack) -> None:
    held = stack.name()
    early = stack.jobs.submit("hold", name=held)
    at = stack.jobs.record(early)["submitted_at"]
    with follow(stack.jobs, submitted_after=at) as after, follow(stack.jobs, submitted_before=at) as before:
        late = stack.jobs.submit("hold", name=held)
        stack.journal.release(held)
        until_ended(after, [late])
        stack.jobs.wait(early, "completed")
        later = stack.jobs.submit("noop")
        until_ended(after, [later])
        assert (events_of(after, early), events_of(after, late)) == ([], WHOLE)
        assert [event for event in before.seen if event.data] == []


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(
    "query",
    [
        *("status_filter=", "status_filter=cancelled", "task=", "queue=", "tag=", "nosuch=1", "submitted_after=today"),
        *("limit=10", "cursor=x", "poll_interval=0", "poll_interval=60.1", "poll_interval=nan", "poll_interval="),
    ],
)
def test_what_it_does_not_know_is_refused_before_it_opens(stack: Stack, query: str) -> None:
    answer = stack.jobs.client.get(f"{PATH}?{query}", timeout=5)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["instance"] == PATH
    assert answer.json()["errors"]


@shared(EMBEDDED, PREFORK, slow=(SQLITE,))
def test_a_client_that_was_away_gets_every_status_that_it_missed_in_order(stack: Stack) -> None:
    held = stack.name()
    with follow(stack.jobs) as stream:
        running = stack.jobs.submit("hold", name=held)
        deleted = stack.jobs.submit("note")
        until_ended(stream, [deleted])
        if "running" not in events_of(stream, running):
            until_told(stream, running, "running")
        mark = last_id(stream)
    stack.jobs.delete(deleted)
    stack.journal.release(held)
    fresh = [stack.jobs.submit("noop") for _ in range(20)]
    gone = stack.jobs.submit("noop")
    for job in (running, gone, *fresh):
        stack.jobs.wait(job, "completed")
    stack.jobs.delete(gone)
    with follow(stack.jobs, last_event_id=mark) as stream:
        last = stack.jobs.submit("noop")
        until_ended(stream, [last])
        assert events_of(stream, running) == ["completed"]
        assert {job: events_of(stream, job) for job in fresh} == dict.fromkeys(fresh, WHOLE)
        assert events_of(stream, last) == WHOLE
        assert events_of(stream, deleted) == events_of(stream, gone) == [], "what was deleted meanwhile is not told"


def last_id(stream: Stream) -> str:
    """Where a client that has read so far resumes; the last of the events that are sent at once has it."""
    return [event.id for event in stream.seen if event.id][-1] or ""


@shared(EMBEDDED, PREFORK)
def test_a_stream_that_is_cut_again_and_again_misses_nothing(stack: Stack) -> None:
    """Jobs come and go all the while; each connection takes a few events and resumes with the last id that it saw."""
    mark, told = first_mark(stack.jobs), list[tuple[str, str | None]]()
    jobs = [stack.jobs.submit("noop") for _ in range(60)]
    left = set(jobs)
    for _ in range(200):
        with follow(stack.jobs, last_event_id=mark) as stream:
            for event in stream:
                if event.data is not None:
                    told.append((event.data["id"], event.status))
                    left -= {event.data["id"]} if event.status == "completed" else set()
                mark = event.id or mark
                if event.id and len(stream.seen) > 5:
                    break
                if not left:
                    break
        if not left:
            break
    for job in jobs:
        statuses = [status for each, status in told if each == job]
        assert list(dict.fromkeys(statuses)) == WHOLE, "none skipped, and in order"


def first_mark(jobs: Jobs) -> str:
    """The id that a stream gives before anything has happened."""
    with jobs.client.stream("GET", PATH) as response:
        return next(line[4:] for line in response.iter_lines() if line.startswith("id: "))


@shared(EMBEDDED, PREFORK)
def test_an_idle_client_has_an_id_to_resume_from(stack: Stack) -> None:
    mark = first_mark(stack.jobs)
    job = stack.jobs.submit("noop")
    stack.jobs.wait(job, "completed")
    with follow(stack.jobs, last_event_id=mark) as stream:
        until_ended(stream, [job])
        assert events_of(stream, job) == WHOLE


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(
    "unknown", ["", "abc", "1-1-0", "-1", "1-", "999999999999999999", "0.1", "1.2", "1" * 400, "é"]
)
def test_an_id_that_is_none_begins_from_now(stack: Stack, unknown: str) -> None:
    old = stack.jobs.submit("noop")
    stack.jobs.wait(old, "completed")
    with stack.jobs.client.stream("GET", PATH, headers={b"Last-Event-ID": unknown.encode()}) as response:
        stream = Stream(response)
        job = stack.jobs.submit("noop")
        until_ended(stream, [job])
        assert (events_of(stream, old), events_of(stream, job)) == ([], WHOLE)
