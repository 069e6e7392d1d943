"""Processes that are silent for a while and are not dead, or come back after they were taken for dead (case C17)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from tests.acceptance.kinds import own
from tests.support.processes import Process, Processes
from tests.support.service import WORKER_READY
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

T = 4.0  # what spins takes the processors that the lease is renewed on
SHORT = {"JOBS_WORKER_TIMEOUT_SECONDS": f"{T:g}"}
NOTICED_SECONDS = T * 1.1 + 8.0


@pytest.mark.slow
@own(PREFORK)
def test_jobs_that_never_let_go_of_the_processor_lose_no_worker(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, **SHORT).start()
    name = stack.name()
    spinning = stack.jobs.submit("process.spinning", name=name)
    locking = stack.jobs.submit("process.locking", seconds=3 * T)
    for job in (spinning, locking):
        stack.journal.wait_start(job)
    for job in (spinning, locking):
        with stack.jobs.stream(job) as stream:
            assert stream.next().status == "running"
            if job == spinning:
                stays(lambda: stack.jobs.queue()["workers"] == 1, "the worker is alive", 2.8 * T, interval=0.2)
                stack.journal.release(name)
            assert [event.status for event in stream.rest()] == ["completed"]
        assert stack.jobs.record(job)["attempt"] == 1


@pytest.mark.slow
@own(THREADS)
def test_a_job_in_a_thread_that_holds_the_interpreters_lock_may_be_taken_for_dead(
    new_stack: NewStack, kind: Kind
) -> None:
    stack = new_stack(kind, slots=2, **SHORT).start()
    job = stack.jobs.submit("process.locking", seconds=3 * T)
    stack.journal.wait_start(job)
    record = stack.jobs.wait(job, "completed", "failed", timeout=3 * T + 10)
    if record["status"] == "failed":
        assert record["error"].startswith("WorkerLost: ")
    stack.journal.wait_end(job, 3 * T + 10)
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert stack.jobs.record(job) == record


@pytest.mark.slow
@own(PREFORK)
def test_an_api_process_that_was_stopped_judges_nobody_before_a_whole_timeout(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    (worker,) = stack.workers
    worker.stop()
    stack.process.stop()
    time.sleep(2 * T)  # the pause itself
    stack.process.cont()
    stays(lambda: stack.jobs.status(job) == "running", "running", T / 2)
    worker.cont()
    stays(lambda: stack.jobs.status(job) == "running", "running", T)
    stack.journal.release(name)
    assert stack.jobs.wait(job, "completed")["attempt"] == 1


@pytest.mark.slow
@own(EMBEDDED)
def test_an_embedded_service_that_was_stopped_goes_on(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, **SHORT).start()
    name = stack.name()
    jobs = [stack.jobs.submit(task, name=name) for task in ("hold", "hold_async")]
    for job in jobs:
        stack.journal.wait_start(job)
    stack.process.stop()
    time.sleep(2 * T)  # the pause itself
    stack.process.cont()
    for job in jobs:
        stays(lambda job=job: stack.jobs.status(job) == "running", "running", T / 2)
    stack.journal.release(name)
    for job in jobs:
        assert stack.jobs.wait(job, "completed")["attempt"] == 1


@pytest.mark.slow
@own(PREFORK)
def test_two_workers_of_one_name_are_two_workers(new_stack: NewStack, kind: Kind, processes: Processes) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start(worker=False)
    old = named_worker(stack, processes)
    plain = stack.jobs.submit("hold", name=stack.name())
    stack.journal.wait_start(plain)
    old.stop()
    new = named_worker(stack, processes)
    record = stack.jobs.wait(plain, "failed", timeout=NOTICED_SECONDS)
    old.cont()
    wait_until(lambda: stack.jobs.queue()["workers"] == 2, "both are alive", NOTICED_SECONDS)
    name = stack.name()
    both = [stack.jobs.submit("hold", name=name) for _ in range(2)]
    for job in both:
        stack.journal.wait_start(job)
    stack.jobs.cancel(both[0])
    assert stack.jobs.status(both[1]) == "running"
    stack.journal.release(name)
    stack.jobs.wait(both[0], "canceled")
    stack.jobs.wait(both[1], "completed")
    assert stack.jobs.record(plain) == record
    assert old.running
    assert new.running


def named_worker(stack: Stack, processes: Processes) -> Process:
    command = [sys.executable, "-m", "celery", "-A", "celery_jobs.tasks", "worker", "-E", "--concurrency", "1"]
    command += ["--hostname", "same@host", "--loglevel", "INFO"]
    worker = processes.start(command, name="celery", env=stack.service.env, cwd=stack.service.folder)
    worker.wait_for_log(WORKER_READY, 60)
    return worker
