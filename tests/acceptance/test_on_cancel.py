"""`on_cancel` (contract, section 6): a task's own clean-up runs after its code, before anybody sees `canceled`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.acceptance.kinds import own, shared
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until


def events(stack: Stack, job: str) -> list[str]:
    return [line.event for line in stack.journal.lines(job)]


def log_of(stack: Stack) -> str:
    return (stack.process if stack.kind.embedded else stack.workers[0]).log


@shared(EMBEDDED, PREFORK, THREADS)
@pytest.mark.parametrize("task", ["plain", "coroutine", "checking"])
def test_the_clean_up_runs_after_the_code_and_before_canceled(stack: Stack, task: str) -> None:
    name = stack.name()
    held = stack.service.folder / f"hold-{name}"
    held.touch()
    job = stack.jobs.submit(f"clean_ups.{task}", lock={"name": name, "path": "/x"})
    start = stack.journal.wait_start(job)
    stack.jobs.cancel(job)
    if task == "plain":
        stays(lambda: events(stack, job) == ["start"], "no clean-up while the code runs", 0.5)
        stack.journal.release(name)
    wait_until(lambda: events(stack, job) == ["start", "end", "clean-up"], "it cleans up")
    stays(lambda: stack.jobs.status(job) == "canceling", "canceling", 1.5)
    held.unlink()
    record = stack.jobs.wait(job, "canceled")
    assert (record["error"], record["progress"]["message"]) == (None, "cleaned up")
    line = stack.journal.lines(job)[-1]
    assert (json.loads(line.mark), line.how, line.pid) == ([name, "/x", "by default"], "Lock", start.pid)
    assert events(stack, job).count("clean-up") == 1
    stack.every_slot_works()


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize("how", ["return", "raise", "retry"])
def test_it_runs_too_where_the_code_ended_by_itself_after_the_request(stack: Stack, how: str) -> None:
    name = stack.name()
    job = stack.jobs.submit("clean_ups.ending", name=name, how=how)
    stack.journal.wait_start(job)
    stack.jobs.cancel(job)
    stack.journal.release(name)
    stack.jobs.wait(job, "canceled")
    assert events(stack, job) == ["start", "end", "clean-up"]
    assert stack.journal.lines(job)[-1].mark == "True"


@shared(EMBEDDED, PREFORK)
def test_a_clean_up_that_fails_is_told_and_the_job_is_canceled(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("clean_ups.failing", lock={"name": name})
    stack.journal.wait_start(job)
    stack.jobs.cancel(job)
    record = stack.jobs.wait(job, "canceled")
    assert record["error"] == f"OnCancelFailed: OSError: {name} is not there"
    assert "clean_ups.py" in record["error_traceback"]
    assert any(job in line and "on_cancel failed" in line for line in log_of(stack).splitlines())


@shared(EMBEDDED, PREFORK)
def test_a_clean_up_cannot_end_its_process(stack: Stack) -> None:
    job = stack.jobs.submit("clean_ups.exiting", name=stack.name())
    stack.journal.wait_start(job)
    stack.jobs.cancel(job)
    assert stack.jobs.wait(job, "canceled")["error"] == "OnCancelFailed: SystemExit: 3"
    stack.every_slot_works()


@shared(EMBEDDED, PREFORK)
def test_a_job_that_was_not_canceled_or_never_began_is_not_cleaned_up(stack: Stack) -> None:
    ended = {how: stack.jobs.submit("clean_ups.ending", name=stack.name(), how=how) for how in ("return", "raise")}
    stack.release_all()
    waiting = stack.jobs.submit("clean_ups.ending", name="x", how="return", params={"run_at": "2099-01-01T00:00:00Z"})
    stack.jobs.cancel(waiting)
    stack.jobs.wait(ended["return"], "completed")
    stack.jobs.wait(ended["raise"], "failed")
    stack.jobs.wait(waiting, "canceled")
    for job in (*ended.values(), waiting):
        assert "clean-up" not in events(stack, job)


@shared(EMBEDDED, PREFORK)
def test_a_job_that_is_deleted_while_it_runs_is_cleaned_up(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("clean_ups.plain", lock={"name": name})
    stack.journal.wait_start(job)
    stack.jobs.delete(job)
    stack.journal.release(name)
    wait_until(lambda: events(stack, job) == ["start", "end", "clean-up"], "it cleans up")
    stack.every_slot_works()


@own(EMBEDDED)
def test_a_shutdown_is_no_cancel(new_stack: Callable[..., Stack], kind: Kind) -> None:
    stack = new_stack(kind, JOBS_SHUTDOWN_TIMEOUT_SECONDS="1").start()
    jobs = [
        stack.jobs.submit(f"clean_ups.{task}", lock={"name": stack.name()}, note="x") for task in ("coroutine", "plain")
    ]
    for job in jobs:
        stack.journal.wait_start(job)
    stack.process.terminate()
    stack.process.wait(20)
    assert [events(stack, job)[:2] for job in jobs] == [["start", "end"], ["start"]]
    assert not any("clean-up" in events(stack, job) for job in jobs)


@shared(PREFORK)
def test_a_run_whose_process_is_gone_is_not_cleaned_up(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("clean_ups.ending", name=name, how="die")
    stack.journal.wait_start(job)
    stack.jobs.cancel(job)
    stack.journal.release(name)
    stack.jobs.wait(job, "canceled")
    stack.every_slot_works()
    assert events(stack, job) == ["start", "end"] or events(stack, job) == ["start"]


@shared(EMBEDDED, PREFORK)
def test_whoever_cancels_at_the_last_moment_finds_it_cleaned_up_or_too_late(stack: Stack) -> None:
    dice = random.Random(7)

    def race(longest: float) -> tuple[str, int]:
        job = stack.jobs.submit("clean_ups.napping", seconds=0.02)
        time.sleep(dice.uniform(0, longest))
        return job, stack.jobs.cancel(job, 202, 409).status_code

    raced: list[tuple[str, int]] = []
    with ThreadPoolExecutor(4) as pool:
        for longest in (0.05, 0.1, 0.2, 0.4, 0.8):
            raced += pool.map(race, [longest] * 20)
    for job, status in raced:
        record: dict[str, Any] = stack.jobs.wait(job)
        assert record["status"] == ("canceled" if status == 202 else "completed")
        ran = "clean-up" in events(stack, job)
        assert ran == (record["status"] == "canceled" and record["started_at"] is not None), (
            record,
            events(stack, job),
        )
