"""Records are kept for JOBS_RETENTION_SECONDS after their end (contract, section 9; case C12)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.acceptance.kinds import own
from tests.acceptance.test_all_jobs_stream import follow
from tests.acceptance.test_delete import gone
from tests.support.broker import open_broker
from tests.support.jobs import good
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

RETENTION_SECONDS = 2.0
NOTE = "/api/v1/tasks/sample.note"


def keyed(stack: Stack, mark: str) -> tuple[str, bool]:
    """The job that a submit with an idempotency key gives, and whether it was an earlier one."""
    answer = stack.jobs.client.post(NOTE, json={"mark": mark}, headers={"Idempotency-Key": "the-key"})
    return good(answer, 202).json()["job_id"], "idempotent-replayed" in answer.headers


def wait_gone(stack: Stack, job: str) -> None:
    path = f"/api/v1/jobs/{job}"
    wait_until(lambda: stack.jobs.client.get(path).status_code == 404, f"{job} is gone", interval=0.1)


@own(EMBEDDED, PREFORK)
def test_what_has_ended_goes_in_time_with_its_key_and_what_runs_stays(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, JOBS_RETENTION_SECONDS=f"{RETENTION_SECONDS:g}").start()
    held = stack.name()
    running = stack.jobs.submit("hold", name=held)
    stack.journal.wait_start(running)
    with follow(stack.jobs) as stream:
        job, _ = keyed(stack, "first")
        record = stack.jobs.wait(job, "completed")
        assert keyed(stack, "first") == (job, True)
        with stack.jobs.stream(job) as ended:
            assert [event.status for event in ended.rest()] == ["completed"]
        again = good(stack.jobs.client.post(f"/api/v1/jobs/{job}/$retry"), 202).json()["job_id"]
        stream.until(lambda event: event.data == {"id": job, "status": "deleted"}, "the stream of all jobs says so")
        gone(stack, job)
        resumed = stack.jobs.client.get(f"/api/v1/jobs/{job}/$stream", headers={"Last-Event-ID": "1-4-0"})
        assert resumed.status_code == 404
        assert good(stack.jobs.client.post(f"/api/v1/jobs/{job}/$retry"), 404)
        assert stack.jobs.client.get(f"/api/v1/jobs/{job}", headers={"Prefer": "wait=5"}).status_code == 404
        assert stack.jobs.status(running) == "running"  # older than any of them
        # another body too, since the key is free
        following, replayed = keyed(stack, "second")
        assert (following == job, replayed) == (False, False)
        stream.until(lambda event: _tells(event.data, following, "completed"), "the stream goes on")
    wait_gone(stack, again)
    assert len(stack.journal.starts(job)) == 1
    assert record["status"] == "completed"
    stack.journal.release(held)
    stack.jobs.wait(running, "completed")


def _tells(data: dict[str, Any] | None, job: str, status: str) -> bool:
    return data is not None and (data["id"], data["status"]) == (job, status)


@own(EMBEDDED)
def test_streams_and_waits_end_however_short_the_time_is(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, JOBS_RETENTION_SECONDS="0.001").start()
    for _ in range(2):
        held = stack.name()
        jobs = [stack.jobs.submit("hold", name=held) for _ in range(stack.slots)]
        with ExitStack() as opened:
            streams = [opened.enter_context(stack.jobs.stream(job)) for job in jobs]
            stack.journal.release(held)
            for stream in streams:
                assert stream.rest(10)[-1].status in ("completed", "deleted")
        for job in jobs:
            wait_gone(stack, job)
        answer = stack.jobs.client.post(NOTE, json={}, headers={"Prefer": "wait=10"})
        assert answer.status_code in (200, 202)  # 202 where it was gone before anybody looked
    wait_until(lambda: stack.jobs.list() == [], "nothing is listed")


@pytest.mark.slow
@own(PREFORK)
def test_a_message_of_a_job_that_is_gone_runs_nothing(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_RETENTION_SECONDS="1").start()
    stack.api()
    held = stack.name()
    busy = stack.jobs.submit("hold", name=held)
    stack.journal.wait_start(busy)
    job = stack.jobs.submit("note")
    with open_broker(stack) as broker:
        key, message = broker.wait_message(job)
        stack.journal.release(held)
        stack.jobs.wait(job, "completed")
        wait_gone(stack, job)
        for row_is_there in (True, False):
            if not row_is_there:
                _forget(stack, job)
            broker.push(key, message, copies=2)
            wait_until(lambda: not broker.messages(), "the copies were taken")
            stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert len(stack.journal.starts(job)) == 1
    gone(stack, job)


def _forget(stack: Stack, job: str) -> None:
    """As ten minutes later: the hidden row is removed."""
    with psycopg.connect(stack.service.env["DATABASE_URL"], autocommit=True) as connection:
        assert connection.execute("DELETE FROM jobs WHERE id = %s AND deleted_at IS NOT NULL", [job]).rowcount == 1
