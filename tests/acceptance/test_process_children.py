"""Jobs that end their own process, and processes that end under their jobs (contract, section 2; case C15)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import datetime
from typing import Any

import psutil
import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import statuses
from tests.support.processes import alive
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

CHILD_NOTICED_SECONDS = 5.0 + 5.0


def seconds(record: dict[str, Any]) -> float:
    moments = [datetime.fromisoformat(record[name]) for name in ("started_at", "finished_at")]
    return (moments[1] - moments[0]).total_seconds()


def watched(stack: Stack, task: str, **arguments: Any) -> tuple[dict[str, Any], list[str | None]]:
    """How a job ended, and what a stream that was open all the time told of it."""
    stack.jobs.change_queue(paused=True)
    job = stack.jobs.submit(task, **arguments)
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "pending"
        stack.jobs.change_queue(paused=False)
        told = statuses(stream.rest(40))
    return stack.jobs.record(job), told


ENDS = {
    "os_exit": "WorkerLost: the process that ran the job ended unexpectedly (exit code 3)",
    "segfault": "WorkerLost: the process that ran the job ended unexpectedly (signal 11, SIGSEGV)",
    "sigkill": "WorkerLost: the process that ran the job ended unexpectedly (signal 9, SIGKILL)",
    "system_exit": "SystemExit: 3",
    "keyboard_interrupt": "KeyboardInterrupt",
    "memory_error": "MemoryError: none left",
}


@shared(PREFORK, SQLITE)
@pytest.mark.parametrize("how", ENDS)
def test_a_job_that_ends_its_process_fails_once_and_says_why(stack: Stack, how: str) -> None:
    record, told = watched(stack, "process.ending", how=how)
    assert (record["status"], record["error"]) == ("failed", ENDS[how])
    assert told == ["running", "failed"]
    assert seconds(record) < CHILD_NOTICED_SECONDS
    stack.every_slot_works()
    assert stack.jobs.record(record["id"]) == record


@shared(EMBEDDED, THREADS)
@pytest.mark.parametrize("how", ["system_exit", "keyboard_interrupt", "memory_error"])
def test_a_job_in_a_thread_that_would_end_its_process_ends_alone(stack: Stack, how: str) -> None:
    record, told = watched(stack, "process.ending", how=how)
    assert (record["status"], record["error"]) == ("failed", ENDS[how])
    assert told == ["running", "failed"]
    stack.every_slot_works()


@shared(PREFORK)
@pytest.mark.parametrize("clean_up", ["none", "raises", pytest.param("swallows", marks=pytest.mark.slow)])
def test_a_job_over_its_hard_limit_fails_when_its_process_is_gone(stack: Stack, clean_up: str) -> None:
    stack.jobs.change_queue(paused=True)
    job = stack.jobs.submit("process.limited", name=stack.name(), clean_up=clean_up)
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "pending"
        stack.jobs.change_queue(paused=False)
        child = psutil.Process(stack.journal.wait_start(job).pid)
        assert stream.next().status == "running"
        assert stream.next().status == "failed"
        assert not alive(child)
        assert stream.rest() == []
    record = stack.jobs.record(job)
    assert record["error"] == "TimeLimitExceeded: the job ran for longer than its hard time limit of 1 s"
    assert seconds(record) < 1 + CHILD_NOTICED_SECONDS
    stack.every_slot_works()
    assert len(stack.journal.starts(job)) == 1


@shared(PREFORK)
def test_a_job_that_catches_its_soft_limit_completes(stack: Stack) -> None:
    pid = stack.journal.wait_start(job := stack.jobs.submit("process.soft_limited", name=stack.name())).pid
    stack.jobs.wait(job, "completed")
    assert stack.jobs.result(job)["result"] == "caught"
    assert psutil.pid_exists(pid)


@own(PREFORK)
def test_a_forced_cancel_ends_code_that_ignores_sigterm(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_CANCEL_GRACE_SECONDS="0.5").start()
    job = stack.jobs.submit("process.stubborn", name=stack.name())
    child = psutil.Process(stack.journal.wait_start(job).pid)
    first, second = stack.jobs.cancel(job, force=True).json(), stack.jobs.cancel(job, force=True).json()
    assert (first["cancel_mode"], second["cancel_mode"]) == ("force", "force")
    wait_until(lambda: stack.jobs.status(job) == "canceled" or not alive(child), "it is ended", 20)
    assert not alive(child), "canceled while its code ran"
    ended = stack.jobs.wait(job, "canceled", timeout=20)
    assert stack.jobs.cancel(job).json() == ended
    stack.jobs.wait(stack.jobs.submit("note"), "completed")


@own(PREFORK)
@pytest.mark.parametrize("task", [pytest.param("hold", marks=pytest.mark.slow), "process.locking"])
def test_children_end_with_their_main_process(new_stack: NewStack, kind: Kind, task: str) -> None:
    timeout = 3.0
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS=f"{timeout:g}").start()
    arguments = {"seconds": 30} if task.endswith("locking") else {"name": stack.name()}
    job = stack.jobs.submit(task, **arguments)
    child = psutil.Process(stack.journal.wait_start(job).pid)
    stack.workers[0].kill9_alone()
    wait_until(lambda: not alive(child), "the child ends", 5)
    assert stack.jobs.status(job) == "running"  # nobody has taken it for dead yet
    record = stack.jobs.wait(job, "failed", timeout=timeout * 1.1 + 8)
    assert record["error"].startswith("WorkerLost: ")
    stack.worker()
    stack.jobs.wait(stack.jobs.submit("note"), "completed")


@pytest.mark.slow
@own(PREFORK)
def test_a_child_that_is_stopped_keeps_its_job_as_long_as_its_worker_lives(new_stack: NewStack, kind: Kind) -> None:
    timeout = 3.0
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS=f"{timeout:g}").start()
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    pid = stack.journal.wait_start(job).pid
    os.kill(pid, signal.SIGSTOP)
    stays(lambda: stack.jobs.status(job) == "running", "running", timeout * 1.5)
    stack.journal.release(name)
    os.kill(pid, signal.SIGCONT)
    stack.jobs.wait(job, "completed")
