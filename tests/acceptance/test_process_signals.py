"""A second signal ends at once and the record is true (contract, sections 2 and 4)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.acceptance.kinds import own
from tests.support.processes import Process, alive
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

# what interrupted coroutines get to clean up in, and a busy machine's delay
AT_ONCE_SECONDS = 2.0 + 6.0
ONE_WISH_SECONDS = 1.0  # two signals within it are one
LONG_T = {"JOBS_WORKER_TIMEOUT_SECONDS": "60"}  # no sweeper judges within the test


def held(stack: Stack, task: str) -> str:
    job = stack.jobs.submit(task, name=stack.name())
    stack.journal.wait_start(job)
    return job


def canceled(record: dict[str, Any]) -> bool:
    return record["status"] == "canceled" and "shut down" in record["error"]


@pytest.mark.parametrize("kind", [PREFORK, pytest.param(THREADS, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(signal.SIGTERM, signal.SIGTERM, id="term-term"),
        pytest.param(signal.SIGINT, signal.SIGINT, id="int-int", marks=pytest.mark.slow),
        pytest.param(None, signal.SIGQUIT, id="quit", marks=pytest.mark.slow),
    ],
)
def test_a_second_signal_ends_a_worker_at_once_and_its_records_say_so(
    new_stack: NewStack, kind: Kind, first: signal.Signals | None, second: signal.Signals
) -> None:
    stack = new_stack(kind, slots=3, **LONG_T).start()
    plain, coroutine, again = (held(stack, task) for task in ("hold", "hold_async", "survivor"))
    (worker,) = stack.workers
    children = worker.children()
    if first is not None:
        worker.send(first)
        worker.wait_for_log("Warm shutdown")
        time.sleep(ONE_WISH_SECONDS * 1.2)  # the time that makes it another wish
        assert worker.running
        assert stack.jobs.status(plain) == "running"
    began = time.monotonic()
    worker.send(second)
    code = worker.wait(20)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert code != 0
    assert not any(alive(child) for child in children)
    assert canceled(stack.jobs.record(plain))
    assert canceled(stack.jobs.record(coroutine))
    assert stack.journal.wait_end(coroutine).how == "CancelledError"
    waits = stack.jobs.record(again)
    assert (waits["status"], waits["attempt"]) == ("pending", 1)
    assert stack.jobs.queue()["workers"] == 0
    stack.worker()
    stack.journal.wait_start(again, 2)
    stack.release_all()
    stack.jobs.wait(again, "completed")


@pytest.mark.slow
@own(PREFORK)
def test_signals_that_come_together_are_one_and_running_jobs_end_by_themselves(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    (worker,) = stack.workers
    worker.interrupt()
    worker.terminate()
    worker.wait_for_log("Warm shutdown")
    time.sleep(ONE_WISH_SECONDS)  # in which a worker that takes them for two would have ended it
    assert stack.jobs.status(job) == "running"
    stack.journal.release(name)
    stack.jobs.wait(job, "completed")
    worker.wait(20)


@pytest.mark.slow
@own(PREFORK)
def test_a_cold_shutdown_ends_code_that_ignores_sigterm(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **LONG_T).start()
    job = held(stack, "process.stubborn")
    began = time.monotonic()
    stack.workers[0].send(signal.SIGQUIT)
    stack.workers[0].wait(20)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert canceled(stack.jobs.record(job))


@pytest.mark.slow
@own(PREFORK)
def test_celerys_soft_shutdown_lets_short_jobs_end(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, **LONG_T)
    stack.service.module(
        "celeryconfig", "from celery_jobs.tasks.defaults import *\nworker_soft_shutdown_timeout = 3.0\n"
    )
    stack.start(worker=False).worker(REMAP_SIGTERM="SIGQUIT")
    name = stack.name()
    short = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(short)
    long = held(stack, "hold")
    stack.workers[0].terminate()
    stack.workers[0].wait_for_log("Soft Shutdown")
    stack.journal.release(name)
    stack.workers[0].wait(3 + AT_ONCE_SECONDS + 5)
    assert stack.jobs.record(short)["status"] == "completed"
    assert canceled(stack.jobs.record(long))


@own(EMBEDDED)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_second_signal_ends_the_embedded_service_at_once(
    new_stack: NewStack, kind: Kind, number: signal.Signals
) -> None:
    stack = new_stack(kind, slots=4, JOBS_SHUTDOWN_TIMEOUT_SECONDS="60", **LONG_T).start()
    plain, coroutine, again = (held(stack, task) for task in ("hold", "hold_async", "survivor"))
    waiting = stack.jobs.submit("retrying", name=stack.name(), countdown=30)
    wait_until(lambda: stack.jobs.record(waiting)["attempt"] == 1, "it waits for its retry")
    stack.process.send(number)
    wait_until(lambda: not takes_jobs(stack), "it takes no more jobs")
    time.sleep(ONE_WISH_SECONDS * 1.2)
    assert stack.process.running
    began = time.monotonic()
    stack.process.send(number)
    stack.process.wait(20)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    stack.apis.clear()
    stack.api()
    for job in (plain, coroutine):
        assert canceled(stack.jobs.record(job)), stack.jobs.record(job)
    stack.journal.wait_start(again, 2)
    stack.release_all()
    stack.jobs.wait(again, "completed")
    assert stack.jobs.status(waiting) == "pending"


def takes_jobs(stack: Stack) -> bool:
    try:
        return stack.jobs.client.post("/api/v1/tasks/sample.noop", json={}).status_code == 202
    except Exception:
        return False


@pytest.mark.slow
@own(PREFORK)
def test_a_second_signal_ends_up_and_its_processes_at_once(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, JOBS_SHUTDOWN_TIMEOUT_SECONDS="60", **LONG_T)
    stack.apis.append(stack.service.up("--concurrency", "1"))
    job = held(stack, "hold")
    stack.process.interrupt()
    time.sleep(ONE_WISH_SECONDS * 1.2)
    assert stack.process.running
    began = time.monotonic()
    stack.process.interrupt()
    stack.process.wait(20)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    wait_until(lambda: not stack.process.family(), "nothing of it is left", 10)
    stack.apis.clear()
    stack.api()
    assert canceled(stack.jobs.record(job))


def commands(up: Process) -> dict[str, psutil.Process]:
    """The two processes that it started."""
    children = psutil.Process(up.pid).children()
    found = {name: child for child in children for name in ("api", "worker") if name in child.cmdline()[1:5]}
    assert set(found) == {"api", "worker"}
    return found


@own(PREFORK)
@pytest.mark.parametrize("victim", ["api", pytest.param("worker", marks=pytest.mark.slow)])
def test_up_ends_with_a_line_and_a_code_when_one_of_its_processes_is_lost(
    new_stack: NewStack, kind: Kind, victim: str
) -> None:
    stack = new_stack(kind, JOBS_SHUTDOWN_TIMEOUT_SECONDS="1")
    stack.apis.append(stack.service.up("--concurrency", "1"))
    wait_until(lambda: stack.jobs.queue()["workers"], "the worker is there")
    os.kill(commands(stack.process)[victim].pid, signal.SIGKILL)
    assert stack.process.wait(20) == 128 + 9
    assert f"celery-jobs: the {victim} process was ended by signal 9; the service stops" in stack.process.log
    wait_until(lambda: not stack.process.family(), "nothing of it is left", 10)


@own(PREFORK)
def test_the_processes_of_up_end_in_good_order_when_it_is_killed(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, JOBS_SHUTDOWN_TIMEOUT_SECONDS="1", **LONG_T)
    stack.apis.append(stack.service.up("--concurrency", "1"))
    job = held(stack, "hold_async")
    stack.process.kill9_alone()
    wait_until(lambda: not stack.process.family(), "nothing of it is left", 20)
    assert stack.journal.wait_end(job).how == "CancelledError"
    stack.apis.clear()
    stack.api()
    assert canceled(stack.jobs.record(job))


@pytest.mark.slow
@own(PREFORK)
def test_api_processes_end_when_what_started_them_is_killed(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind)
    stack.apis.append(stack.service.api("--workers", "2"))
    assert len(stack.process.children()) >= 2
    stack.process.kill9_alone()
    wait_until(lambda: not stack.process.family(), "nothing of it is left", 20)
