"""`run_at` and `expires_in_seconds` (contract, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import statuses
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack
from tests.support.waiting import stays

NewStack = Callable[..., Stack]


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@shared(EMBEDDED, PREFORK, SQLITE)
def test_a_job_does_not_start_before_its_time(stack: Stack) -> None:
    when = in_seconds(2)
    job = stack.jobs.submit("note", params={"run_at": when})
    other = stack.jobs.submit("note")
    record = stack.jobs.wait(other, "completed")  # the one that waits is in nobody's way
    waiting = stack.jobs.record(job)
    assert (waiting["status"], datetime.fromisoformat(waiting["run_at"])) == ("pending", datetime.fromisoformat(when))
    record = stack.jobs.wait(job, "completed")
    assert datetime.fromisoformat(record["started_at"]) >= datetime.fromisoformat(when) - timedelta(milliseconds=1)
    assert stack.journal.starts(job)[0].at >= datetime.fromisoformat(when).timestamp() - 0.001


@shared(EMBEDDED, PREFORK)
def test_a_time_that_has_passed_means_now(stack: Stack) -> None:
    for when in (in_seconds(-60), "0001-01-01T00:00:00+14:00", "1970-01-01T00:00:00Z"):
        stack.jobs.wait(stack.jobs.submit("note", params={"run_at": when}), "completed")
    far = stack.jobs.submit("note", params={"run_at": "9999-12-31T23:59:59-12:00"})
    assert stack.jobs.status(far) == "pending"
    stack.jobs.cancel(far)


@shared(EMBEDDED, PREFORK)
def test_a_job_that_waits_for_its_time_can_be_canceled_and_deleted(stack: Stack) -> None:
    canceled, deleted = (stack.jobs.submit("note", params={"run_at": in_seconds(1)}) for _ in range(2))
    stack.jobs.cancel(canceled)
    stack.jobs.delete(deleted)
    later = stack.jobs.submit("note", params={"run_at": in_seconds(1.2)})
    stack.jobs.wait(later, "completed")
    assert stack.jobs.status(canceled) == "canceled"
    assert not stack.journal.starts(canceled, deleted)


@shared(EMBEDDED)
@pytest.mark.parametrize(
    "query",
    [
        *("run_at=tomorrow", "run_at=", "run_at=2026-13-01T00:00:00Z", "run_at=2026-01-01T00:00:00"),
        *("expires_in_seconds=-1", "expires_in_seconds=nan", "expires_in_seconds=inf", "expires_in_seconds=soon"),
    ],
)
def test_a_time_that_is_none_is_refused(stack: Stack, query: str) -> None:
    answer = stack.jobs.client.post(f"/api/v1/tasks/sample.note?{query}", json={})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["query", query.partition("=")[0]]


@own(EMBEDDED, slow=(PREFORK, SQLITE))
def test_a_job_that_did_not_start_in_time_is_canceled_as_expired(kind: Kind, new_stack: NewStack) -> None:
    stack = new_stack(kind, JOBS_WORKER_TIMEOUT_SECONDS="5").start()
    stack.jobs.change_queue(paused=True)
    job = stack.jobs.submit("note", params={"expires_in_seconds": 0.5})
    keeping = stack.jobs.submit("note", params={"expires_in_seconds": 1e300})
    with stack.jobs.stream(job) as stream:
        events = stream.rest(timeout=20)
    assert statuses(events) == ["pending", "canceled"]
    record = stack.jobs.record(job)
    assert "expired" in record["error"]
    assert record["expires_at"] is not None
    assert record["cancel_requested_at"] is None
    stack.jobs.change_queue(paused=False)
    stack.jobs.wait(keeping, "completed")
    assert not stack.journal.starts(job)


@pytest.mark.slow
@own(PREFORK, slow=(EMBEDDED,))
def test_expiry_does_not_wait_for_the_next_look_at_dead_workers(kind: Kind, new_stack: NewStack) -> None:
    stack = new_stack(kind, JOBS_WORKER_TIMEOUT_SECONDS="600").start()
    stack.jobs.change_queue(paused=True)
    stack.jobs.wait(stack.jobs.submit("note", params={"expires_in_seconds": 0.2}), "canceled", timeout=10)


@shared(EMBEDDED, PREFORK)
def test_a_job_that_expires_at_once_never_runs(stack: Stack) -> None:
    job = stack.jobs.submit("note", params={"expires_in_seconds": 0})
    record = stack.jobs.wait(job, "canceled")
    assert "expired" in record["error"]
    stays(lambda: not stack.journal.starts(job), "it does not run", 0.3)


@shared(EMBEDDED, PREFORK)
def test_a_job_that_started_in_time_may_take_longer(stack: Stack) -> None:
    job = stack.jobs.submit("nap_async", seconds=1.5, params={"expires_in_seconds": 1})
    assert stack.jobs.wait(job, "completed")["error"] is None
