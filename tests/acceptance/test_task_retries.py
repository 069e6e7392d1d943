"""Celery's retries in a job (contract, section 6): attempts and times are the record's, on every pool."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.kinds import shared
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Stack
from tests.support.waiting import wait_until

BOTH = pytest.mark.parametrize("kind_of_function", ["", "_async"])


def waits(stack: Stack, job: str, attempt: int) -> dict[str, Any]:
    """The record between two attempts."""

    def waiting() -> dict[str, Any] | None:
        record = stack.jobs.record(job)
        return record if (record["status"], record["attempt"]) == ("pending", attempt) else None

    found = wait_until(waiting, f"attempt {attempt} is over")
    assert found is not None
    return found


def delay(stack: Stack, record: dict[str, Any], job: str) -> float:
    """From the end of the last attempt to the next one."""
    return datetime.fromisoformat(record["run_at"]).timestamp() - stack.journal.ends(job)[-1].at


@shared(EMBEDDED, PREFORK, THREADS)
@BOTH
def test_retries_back_off_to_their_maximum_and_the_last_failure_is_the_jobs(
    stack: Stack, kind_of_function: str
) -> None:
    job = stack.jobs.submit(f"writing.auto{kind_of_function}", error="ConnectionError")
    first = waits(stack, job, 1)
    assert 1.9 < delay(stack, first, job) < 2.9
    second = waits(stack, job, 2)
    assert 2.9 < delay(stack, second, job) < 3.9  # twice as long, but for the maximum
    record = stack.jobs.wait(job, "failed")
    assert (record["attempt"], record["error"]) == (3, "ConnectionError: told to raise ConnectionError")
    assert f"in auto{kind_of_function}" in record["error_traceback"]
    starts = [line.at for line in stack.journal.starts(job)]
    assert starts[1] - starts[0] > 1.9
    assert starts[2] - starts[1] > 2.9


@shared(EMBEDDED, PREFORK)
@BOTH
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ("ValueError", "failed", "ValueError: told to raise ValueError"),
        ("ConnectionResetError", "failed", "ConnectionResetError: told to raise ConnectionResetError"),
        ("Ignore", "completed", None),
    ],
)
def test_what_is_excepted_is_not_tried_again(
    stack: Stack, kind_of_function: str, error: str, status: str, said: str | None
) -> None:
    job = stack.jobs.submit(f"writing.auto{kind_of_function}", error=error)
    record = stack.jobs.wait(job, status)
    assert (record["attempt"], record["error"]) == (1, said)


@shared(EMBEDDED)
def test_jitter_takes_any_time_up_to_the_back_off(stack: Stack) -> None:
    jobs = [stack.jobs.submit("writing.jittering") for _ in range(8)]
    for job in jobs:
        wait_until(lambda job=job: stack.jobs.record(job)["run_at"], "it will be tried again")
    delays = [datetime.fromisoformat(stack.jobs.record(job)["run_at"]).timestamp() for job in jobs]
    assert max(delays) - min(delays) > 5
    for job in jobs:
        assert stack.jobs.cancel(job).json()["status"] == "canceled"


@shared(EMBEDDED, PREFORK, THREADS)
@BOTH
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("plain", "MaxRetriesExceededError: writing.by_hand{} was retried 1 times"),
        ("exc", "ConnectionError: the real one"),
    ],
)
def test_a_retry_by_hand_ends_with_the_real_error_or_celerys(
    stack: Stack, kind_of_function: str, how: str, error: str
) -> None:
    job = stack.jobs.submit(f"writing.by_hand{kind_of_function}", how=how)
    record = stack.jobs.wait(job, "failed")
    assert (record["attempt"], record["error"]) == (2, error.format(kind_of_function))
    assert "ConnectionError: the real one" in record["error_traceback"]
    assert [line.mark for line in stack.journal.starts(job)] == [f"{job} 0", f"{job} 1"]


@shared(EMBEDDED, PREFORK)
@BOTH
@pytest.mark.parametrize("how", ["eta", "countdown"])
def test_a_retry_by_hand_waits_until_its_time(stack: Stack, kind_of_function: str, how: str) -> None:
    job = stack.jobs.submit(f"writing.by_hand{kind_of_function}", how=how)
    record = waits(stack, job, 1)
    assert 290 < delay(stack, record, job) < 301
    assert (record["finished_at"], record["error"]) == (None, None)
    assert stack.jobs.cancel(job).json()["status"] == "canceled"


@shared(EMBEDDED, PREFORK)
@BOTH
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("other", "TypeError: a @job retries with the arguments it was submitted with"),
        ("queue", "TypeError: a @job retries in its own queue; self.retry() takes no queue"),
        ("replace", "TypeError: self.replace() is not possible in a @job"),
    ],
)
def test_what_a_job_cannot_do_is_said_clearly(stack: Stack, kind_of_function: str, how: str, said: str) -> None:
    job = stack.jobs.submit(f"writing.by_hand{kind_of_function}", how=how)
    assert stack.jobs.wait(job, "failed")["error"].startswith(said)


@shared(EMBEDDED, PREFORK)
def test_other_ways_to_leave(stack: Stack) -> None:
    ignored, rejected = (stack.jobs.submit("writing.leaving", how=how) for how in ("Ignore", "Reject"))
    without = stack.jobs.submit("writing.ignoring")
    assert (stack.jobs.wait(ignored, "completed")["error"], stack.jobs.result(ignored)["result"]) == (None, None)
    assert stack.jobs.wait(rejected, "failed")["error"].startswith("Reject: ")
    stack.jobs.wait(without, "completed")
    assert stack.jobs.result(without)["result"] == 42
    stack.every_slot_works()


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize("task", ["factorial", "factorial_async"])
def test_a_task_that_calls_itself_is_one_job(stack: Stack, task: str) -> None:
    job = stack.jobs.submit(f"writing.{task}", number=5)
    stack.jobs.wait(job, "completed")
    assert stack.jobs.result(job)["result"] == 120
