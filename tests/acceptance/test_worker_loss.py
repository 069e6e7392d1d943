"""Workers that die, or only seem to (contract, section 2; case C06)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import statuses
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

T = 4.0
SHORT = {"JOBS_WORKER_TIMEOUT_SECONDS": f"{T:g}"}
# T + T/10, and what a busy machine takes for starting processes and answering
NOTICED_SECONDS = T * 1.1 + 8.0
CHILD_NOTICED_SECONDS = 5.0 + 5.0


def started(stack: Stack, task: str, name: str | None = None) -> tuple[str, str]:
    """A job whose code has begun, and the name under which it holds."""
    name = name or stack.name()
    job = stack.jobs.submit(task, name=name)
    stack.journal.wait_start(job)
    return job, name


def lost(record: dict[str, Any]) -> None:
    assert record["status"] == "failed"
    assert record["error"].startswith("WorkerLost: ")
    assert record["finished_at"] is not None


@own(PREFORK, THREADS)
def test_a_killed_workers_job_fails_and_its_stream_ends(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    stack.worker()
    first, _ = started(stack, "hold")
    other, name = started(stack, "hold")
    assert stack.worker_of(first) is not stack.worker_of(other)
    with stack.jobs.stream(first) as stream:
        assert stream.next().status == "running"
        stack.worker_of(first).kill9()
        stack.worker()
        assert statuses(stream.rest(NOTICED_SECONDS)) == ["failed"]
    lost(stack.jobs.record(first))
    assert stack.jobs.status(other) == "running"
    stack.journal.release(name)
    stack.jobs.wait(other, "completed")
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    lost(stack.jobs.record(first))


@own(PREFORK)
def test_killed_children_are_reported_and_their_worker_goes_on(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=3).start()
    jobs = [started(stack, task)[0] for task in ("hold", "hold_async")]
    neighbour, name = started(stack, "hold")
    for job in jobs:
        os.kill(stack.journal.starts(job)[0].pid, signal.SIGKILL)
    for job in jobs:
        lost(stack.jobs.wait(job, "failed", timeout=CHILD_NOTICED_SECONDS))
    for following in [stack.jobs.submit("note") for _ in range(4)]:
        stack.jobs.wait(following, "completed")
    assert stack.jobs.status(neighbour) == "running"
    stack.journal.release(name)
    stack.jobs.wait(neighbour, "completed")


@own(SQLITE, THREADS)
def test_a_job_that_is_safe_to_run_again_runs_again_after_its_worker_died(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    job, name = started(stack, "survivor")
    first = stack.jobs.record(job)
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "running"
        stack.worker_of(job).kill9()
        stack.worker()
        stack.journal.wait_start(job, 2, timeout=NOTICED_SECONDS + 10)
        again = stack.jobs.wait(job, "running")
        stack.journal.release(name)
        assert statuses(stream.rest()) == ["pending", "running", "completed"]
    assert (first["attempt"], again["attempt"]) == (1, 2)
    assert again["started_at"] == first["started_at"]
    assert len(stack.journal.starts(job)) == 2


@own(PREFORK)
def test_a_job_that_kills_its_process_runs_at_most_max_attempts_times(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    job = stack.jobs.submit("poison", name=stack.name())
    record = stack.jobs.wait(job, "failed", timeout=2 * CHILD_NOTICED_SECONDS + 10)
    lost(record)
    assert record["attempt"] == 2
    assert len(stack.journal.starts(job)) == 2
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert len(stack.journal.starts(job)) == 2


@own(THREADS)
def test_a_canceling_job_whose_worker_dies_is_canceled(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    job, _ = started(stack, "hold")
    assert stack.jobs.cancel(job).json()["status"] == "canceling"
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "canceling"
        stack.worker_of(job).kill9()
        stack.worker()
        assert statuses(stream.rest(NOTICED_SECONDS)) == ["canceled"]
    assert stack.jobs.record(job)["finished_at"] is not None


@pytest.mark.slow
@own(PREFORK)
def test_a_canceling_job_whose_child_dies_is_canceled(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    job, _ = started(stack, "survivor")  # also when it would be safe to run again
    stack.jobs.cancel(job)
    os.kill(stack.journal.starts(job)[0].pid, signal.SIGKILL)
    stack.jobs.wait(job, "canceled", timeout=CHILD_NOTICED_SECONDS)
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert len(stack.journal.starts(job)) == 1


@own(PREFORK, THREADS)
def test_what_a_worker_reports_after_it_was_taken_for_dead_changes_nothing(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    job, name = started(stack, "hold")
    worker = stack.worker_of(job)
    worker.stop()
    record = stack.jobs.wait(job, "failed", timeout=NOTICED_SECONDS)
    lost(record)
    stack.journal.release(name)  # so that its code ends at once when it goes on
    worker.cont()
    stack.jobs.wait(stack.jobs.submit("note"), "completed")  # it takes jobs again
    assert stack.jobs.record(job) == record
    assert statuses_now(stack, job) == ["failed"]


def statuses_now(stack: Stack, job: str) -> list[str | None]:
    with stack.jobs.stream(job) as stream:
        return statuses(stream.rest())


@own(PREFORK)
def test_a_worker_that_comes_back_ends_the_child_whose_run_is_no_longer_its_own(
    new_stack: NewStack, kind: Kind
) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    job, _ = started(stack, "hold")
    pid = stack.journal.starts(job)[0].pid
    worker = stack.worker_of(job)
    worker.stop()
    record = stack.jobs.wait(job, "failed", timeout=NOTICED_SECONDS)
    worker.cont()
    wait_until(lambda: not psutil.pid_exists(pid), "the child that holds the lost job is ended", NOTICED_SECONDS)
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert stack.jobs.record(job) == record


@own(THREADS)
def test_a_worker_that_comes_back_interrupts_the_coroutine_that_is_no_longer_its_own(
    new_stack: NewStack, kind: Kind
) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    job, _ = started(stack, "hold_async")
    worker = stack.worker_of(job)
    worker.stop()
    record = stack.jobs.wait(job, "failed", timeout=NOTICED_SECONDS)
    worker.cont()
    assert stack.journal.wait_end(job, NOTICED_SECONDS).how == "CancelledError"
    assert stack.jobs.record(job) == record


@own(PREFORK)
def test_a_stopped_workers_survivor_runs_elsewhere_and_ends_once(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    job, name = started(stack, "survivor")
    worker = stack.worker_of(job)
    worker.stop()
    stack.worker()
    stack.journal.wait_start(job, 2, timeout=NOTICED_SECONDS + 10)
    worker.cont()
    stays(lambda: stack.jobs.status(job) == "running", "the second run goes on", T / 2)
    stack.journal.release(name)
    record = stack.jobs.wait(job, "completed")
    assert (record["attempt"], len(stack.journal.starts(job))) == (2, 2)
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert stack.jobs.record(job) == record


@pytest.mark.slow
@own(PREFORK)
def test_the_slot_of_a_deleted_job_is_free_when_its_worker_died(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_MAX_CONCURRENCY="1", **SHORT).start()
    job, _ = started(stack, "hold")
    stack.jobs.delete(job)
    following = stack.jobs.submit("note")
    stack.worker_of(job).kill9()
    stack.worker()
    stack.jobs.wait(following, "completed", timeout=NOTICED_SECONDS + 10)


@own(EMBEDDED)
def test_a_restart_after_a_crash_tells_the_truth_and_runs_what_waited(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, **SHORT).start()
    running, _ = started(stack, "hold")
    again, name = started(stack, "survivor")
    waiting = stack.jobs.submit("note")
    canceled = stack.jobs.submit("note")
    stack.jobs.cancel(canceled)
    stack.process.kill9()
    stack.apis.clear()
    stack.api()
    lost(stack.jobs.wait(running, "failed", timeout=NOTICED_SECONDS))
    stack.jobs.wait(waiting, "completed")
    stack.journal.wait_start(again, 2, timeout=NOTICED_SECONDS)
    stack.journal.release(name)
    assert stack.jobs.wait(again, "completed")["attempt"] == 2
    assert stack.journal.lines(canceled) == []
    assert len(stack.journal.starts(running)) == 1
