"""The record (contract, section 1) and its states (section 2) as clients see them."""

from __future__ import annotations

import re
from datetime import datetime

from tests.acceptance.kinds import shared
from tests.support.jobs import good, statuses
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Stack
from tests.support.waiting import wait_until

FIELDS = {
    *("id", "status", "submitted_at", "started_at", "finished_at", "error", "error_traceback", "artifact_id"),
    *("task", "queue", "worker", "attempt", "progress", "priority", "tags", "submitted_by", "cancel_requested_at"),
    *("cancel_mode", "retry_of", "celery_id", "run_at", "expires_at", "parent_id", "root_id", "links"),
}


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_job_is_pending_then_running_then_completed(stack: Stack) -> None:
    name = stack.name()
    busy = [stack.jobs.submit("hold", name=name) for _ in range(stack.slots)]
    for each in busy:
        stack.journal.wait_start(each)
    held = stack.name()
    job = stack.jobs.submit("hold", name=held)
    pending = stack.jobs.record(job)
    assert set(pending) == FIELDS
    assert (pending["status"], pending["attempt"], pending["started_at"]) == ("pending", 0, None)
    stack.journal.release(name)
    stack.journal.wait_start(job)
    running = stack.jobs.record(job)
    assert (running["status"], running["attempt"], running["finished_at"]) == ("running", 1, None)
    assert running["started_at"] is not None
    assert running["worker"]
    unfinished = stack.jobs.result(job)
    assert (unfinished["status"], unfinished["result"]) == ("running", None)
    stack.journal.release(held)
    completed = stack.jobs.wait(job, "completed")
    changed = {field for field in FIELDS if completed[field] != running[field]}
    assert changed == {"status", "finished_at"}
    assert stack.jobs.result(job) == {
        "job_id": job,
        **{field: completed[field] for field in ("status", "submitted_at", "started_at", "finished_at", "error")},
        "result": held,
    }


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_the_id_is_a_ulid_and_celerys_id_too(stack: Stack) -> None:
    job = stack.jobs.submit("note")
    assert re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", job)
    record = stack.jobs.wait(job, "completed")
    assert record["id"] == record["celery_id"] == job
    assert (record["task"], record["queue"], record["submitted_by"]) == ("sample.note", "jobs", "local")
    assert stack.journal.starts(job)[0].job == job


@shared(EMBEDDED, PREFORK, SQLITE)
def test_a_job_that_raises_is_failed_with_one_line_and_a_traceback(stack: Stack) -> None:
    job = stack.jobs.submit("raising", text="first\r\nsecond\x00 \u2028third")
    record = stack.jobs.wait(job, "failed")
    assert record["error"].startswith("ValueError: first")
    assert "second\ufffd" in record["error"]
    assert len(record["error"].splitlines()) == 1
    assert record["error_traceback"].startswith("Traceback (most recent call last):\n")
    assert "raise ValueError" in record["error_traceback"]
    listed = next(each for each in stack.jobs.list() if each["id"] == job)
    assert "error_traceback" not in listed
    assert "result" not in listed
    assert listed["error"] == record["error"]
    with stack.jobs.stream(job) as stream:
        (event,) = stream.rest()
        assert event.data is not None
        assert event.data["error"] == record["error"]


@shared(EMBEDDED, PREFORK)
def test_a_long_error_is_cut(stack: Stack) -> None:
    job = stack.jobs.submit("raising", text="x" * 500_000)
    record = stack.jobs.wait(job, "failed")
    assert len(record["error"]) == 4000
    assert len(record["error_traceback"].encode()) <= 64 * 1024


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_retry_is_the_same_job_with_one_more_attempt(stack: Stack) -> None:
    job = stack.jobs.submit("retrying", name=stack.name(), failures=2, countdown=0.1)
    with stack.jobs.stream(job) as stream:
        seen = statuses(stream.rest())
    whole = ["pending", "running", "pending", "running", "pending", "running", "completed"]
    assert seen == whole[len(whole) - len(seen) :], "a stream may begin later, but skips nothing of the last attempt"
    record = stack.jobs.record(job)
    assert (record["status"], record["attempt"], record["error"]) == ("completed", 3, None)
    starts = stack.journal.starts(job)
    assert len(starts) == 3
    assert abs(datetime.fromisoformat(record["started_at"]).timestamp() - starts[0].at) < 2


@shared(EMBEDDED, PREFORK, THREADS)
def test_retries_that_are_used_up_fail_with_the_tasks_own_error(stack: Stack) -> None:
    job = stack.jobs.submit("retrying", name=stack.name(), failures=9, countdown=0)
    record = stack.jobs.wait(job, "failed")
    assert (record["attempt"], record["error"]) == (3, "ValueError: try again")


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_job_canceled_while_it_waits_for_its_retry_runs_no_more(stack: Stack) -> None:
    job = stack.jobs.submit("retrying", name=stack.name(), failures=1, countdown=2)
    wait_until(lambda: _waits_again(stack, job), "it waits for its retry")
    assert stack.jobs.cancel(job).json()["status"] == "canceled"
    started = stack.jobs.record(job)["started_at"]
    assert started is not None
    later = stack.jobs.submit("retrying", name=stack.name(), failures=1, countdown=2)
    stack.jobs.wait(later, "completed")
    assert len(stack.journal.starts(job)) == 1
    assert stack.jobs.status(job) == "canceled"


def _waits_again(stack: Stack, job: str) -> bool:
    record = stack.jobs.record(job)
    return record["status"] == "pending" and record["attempt"] == 1


@shared(EMBEDDED, PREFORK)
def test_a_job_that_returns_a_ulid_has_it_as_its_artifact(stack: Stack) -> None:
    job = stack.jobs.submit("artifact")
    assert stack.jobs.wait(job, "completed")["artifact_id"] == "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert stack.jobs.result(job)["result"] == "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@shared(EMBEDDED, PREFORK, SQLITE)
def test_the_list_is_newest_first_and_filtered_by_status(stack: Stack) -> None:
    jobs = [stack.jobs.submit("note") for _ in range(5)]
    failed = stack.jobs.submit("raising")
    for job in (*jobs, failed):
        stack.jobs.wait(job)
    listed = [record["id"] for record in stack.jobs.list()]
    assert listed[:6] == [failed, *reversed(jobs)]
    for status in ("pending", "running", "completed", "failed", "canceling", "canceled"):
        found = stack.jobs.list(status_filter=status)
        assert {record["status"] for record in found} <= {status}
        assert (failed in {record["id"] for record in found}) == (status == "failed")
    times = [datetime.fromisoformat(record["submitted_at"]) for record in stack.jobs.list()]
    assert times == sorted(times, reverse=True)
    assert stack.jobs.client.get("/api/v1/jobs", params={"status_filter": "done"}).status_code == 422
    assert good(stack.jobs.client.get("/api/v1/jobs/$schema"), 200).json()["type"] == "array"
