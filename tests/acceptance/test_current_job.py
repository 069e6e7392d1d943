"""`current_job` (contract, section 6): what a job says of itself, on every pool and from wherever its code goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.acceptance.kinds import shared
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Stack
from tests.support.strict import everywhere
from tests.support.waiting import wait_until

SLOWEST_SECONDS = 20e-6  # a call; measured: 1 to 2 microseconds, where a statement takes hundreds
STORED_A_SECOND = 10


def lines_with(stack: Stack, mark: str, count: int) -> list[str]:
    log = stack.process if stack.kind.embedded else stack.workers[0]

    def found() -> list[str]:
        return [line for line in log.log.splitlines() if f"{mark} " in line]

    wait_until(lambda: len(found()) >= count, f"the log has {count} lines with {mark}")
    return found()


@shared(EMBEDDED, PREFORK, THREADS)
@pytest.mark.parametrize(
    ("task", "places"),
    [("logging_plain", ["code", "a thread that was told"]), ("logging_async", ["code", "to_thread", "task"])],
)
def test_lines_of_its_logger_carry_the_job_id(stack: Stack, task: str, places: list[str]) -> None:
    mark = stack.name()
    job = stack.jobs.submit(f"writing.{task}", mark=mark)
    stack.jobs.wait(job, "completed")
    said = [line for line in lines_with(stack, mark, len(places)) if f"[{job}]" in line and "INFO" in line]
    assert [line.rpartition(" in ")[2] for line in said] == places
    result = stack.jobs.result(job)["result"]
    assert result == (job if task == "logging_async" else ["current_job is there only inside a running job"])


@shared(EMBEDDED, PREFORK)
def test_progress_that_no_client_could_read_fails_no_job(stack: Stack) -> None:
    job = stack.jobs.submit("writing.odd_progress")
    with stack.jobs.stream(job) as stream:
        told: list[dict[str, Any]] = [event.data for event in stream.rest(30) if event.data is not None]
    stack.jobs.wait(job, "completed")
    assert everywhere(stack.jobs, job)["progress"] == {
        "current": 1.5,
        "total": 3,
        "message": "\ufffd\ufffd" + "x" * 998,
    }
    seen = [event["progress"]["current"] for event in told if event.get("progress")]
    assert {7, -1, 2**70, 1, None, 1.5} >= set(seen) >= {7, -1, 1.5}
    assert all(isinstance(value, int | float | None) for value in seen)
    json.dumps(told, allow_nan=False)


@shared(EMBEDDED, PREFORK)
def test_progress_in_a_tight_loop_costs_nothing_and_its_end_is_recorded(stack: Stack) -> None:
    calls = 300_000
    job = stack.jobs.submit("writing.tight", calls=calls)
    with stack.jobs.stream(job) as stream:
        told = stream.rest(60)
    stack.jobs.wait(job, "completed")
    took = stack.jobs.result(job)["result"]
    assert stack.jobs.record(job)["progress"] == {"current": calls, "total": calls, "message": "tight"}
    print(f"{calls / took:,.0f} calls a second")
    assert took / calls < SLOWEST_SECONDS
    assert len(told) <= 3 + 2 * STORED_A_SECOND * max(took, 1)
