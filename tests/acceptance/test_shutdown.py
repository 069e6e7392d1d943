"""Ending in good order (contract, sections 2 and 4): what still runs, what waits, and how long it may take."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from tests.acceptance.kinds import own
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

TIMEOUT = 1.0
EXIT_SECONDS = TIMEOUT + 5.0


def held(stack: Stack, task: str) -> tuple[str, str]:
    name = stack.name()
    job = stack.jobs.submit(task, name=name)
    stack.journal.wait_start(job)
    return job, name


def restart(stack: Stack) -> None:
    stack.apis.clear()
    stack.api()


@own(EMBEDDED)
def test_what_does_not_end_in_time_is_canceled_and_what_waits_runs_after_a_restart(
    new_stack: NewStack, kind: Kind
) -> None:
    stack = new_stack(kind, slots=3, JOBS_SHUTDOWN_TIMEOUT_SECONDS=f"{TIMEOUT:g}").start()
    coroutine, plain, survivor = (held(stack, task)[0] for task in ("hold_async", "hold", "survivor"))
    waiting = stack.jobs.submit("note")
    began = time.monotonic()
    stack.process.terminate()
    stack.process.wait(EXIT_SECONDS + 5)
    assert time.monotonic() - began < EXIT_SECONDS + 1
    assert stack.journal.wait_end(coroutine).how == "CancelledError"
    restart(stack)
    for job in (coroutine, plain):
        record = stack.jobs.wait(job, "canceled", timeout=5)
        assert "shut down" in record["error"]
    stack.jobs.wait(waiting, "completed")
    stack.journal.wait_start(survivor, 2)
    stack.release_all()
    assert stack.jobs.wait(survivor, "completed")["attempt"] == 2
    assert len(stack.journal.starts(plain)) == 1


@own(EMBEDDED)
def test_what_ends_in_time_is_completed(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_SHUTDOWN_TIMEOUT_SECONDS="20").start()
    jobs = [held(stack, task) for task in ("hold", "hold_async")]
    stack.process.terminate()
    wait_until(lambda: not answers(stack), "it takes no more requests")
    assert stack.process.running
    stack.journal.release(*(name for _, name in jobs))
    stack.process.wait(20)
    restart(stack)
    for job, name in jobs:
        assert stack.jobs.record(job)["status"] == "completed"
        assert stack.jobs.result(job)["result"] == name


def answers(stack: Stack) -> bool:
    """Whether the service still takes jobs."""
    try:
        answer = stack.jobs.client.post("/api/v1/tasks/sample.note", json={})
    except httpx.TransportError:
        return False
    assert answer.status_code in (202, 503)
    return answer.status_code == 202


@own(PREFORK, slow=(THREADS,))
def test_a_worker_that_ends_in_good_order_is_alive_until_its_jobs_have_ended(new_stack: NewStack, kind: Kind) -> None:
    timeout = 3.0
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS=f"{timeout:g}").start()
    job, name = held(stack, "hold")
    (worker,) = stack.workers
    worker.terminate()
    stays(lambda: stack.jobs.status(job) == "running", "running", timeout * 1.5)
    waiting = stack.jobs.submit("note")
    stack.worker()
    stack.jobs.wait(waiting, "completed")
    assert stack.jobs.status(job) == "running"
    stack.journal.release(name)
    stack.jobs.wait(job, "completed")
    assert worker.wait(20) == 0


@own(PREFORK)
def test_an_api_process_that_ends_cancels_nothing(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    job, name = held(stack, "hold_async")
    stack.process.terminate()
    assert stack.process.wait(5 + 5) in (0, -15)
    restart(stack)
    assert stack.jobs.status(job) == "running"
    stack.journal.release(name)
    stack.jobs.wait(job, "completed")


@own(PREFORK)
def test_up_with_a_broker_runs_api_and_worker_and_ends_both(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, JOBS_SHUTDOWN_TIMEOUT_SECONDS=f"{TIMEOUT:g}")
    stack.apis.append(stack.service.up("--concurrency", "2"))
    job, _ = held(stack, "hold_async")
    assert stack.journal.starts(job)[0].pid != stack.process.pid
    waiting = stack.jobs.submit("note")
    stack.jobs.wait(waiting, "completed")
    family = stack.process.family()
    assert len(family) > 2
    stack.process.terminate()
    stack.process.wait(EXIT_SECONDS + 10)
    wait_until(lambda: not stack.process.family(), "nothing of it is left", 10)
    assert stack.journal.wait_end(job).how == "CancelledError"
