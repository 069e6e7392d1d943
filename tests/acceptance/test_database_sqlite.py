"""SQLite's writer lock, held by another process for longer than T, reaches no client (contract, sections 2 and 3)."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import good
from tests.support.moments import RAW, Moments, ends_within, file_of
from tests.support.stack import EMBEDDED, SQLITE, Kind, Stack

NewStack = Callable[..., Stack]

T = 3.0
BUSY_SECONDS = 2.0  # what a busy machine adds
SLOTS = 10


@contextmanager
def lock_held(stack: Stack, begin: str = "BEGIN IMMEDIATE") -> Generator[None]:
    """Another process of the machine writes, and does not come to an end."""
    connection = sqlite3.connect(file_of(stack), isolation_level=None, timeout=30)
    connection.execute(begin)
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def workers(stack: Stack) -> set[str]:
    with sqlite3.connect(file_of(stack), timeout=30) as connection:
        return {row[0] for row in connection.execute("SELECT incarnation FROM workers")}


def survive(stack: Stack, seconds: float, begin: str = "BEGIN IMMEDIATE") -> None:
    alive = workers(stack)
    moments = Moments(stack)
    with lock_held(stack, begin):
        began = time.monotonic()
        moments.go_on()
        moments.refused(reads=False)
        assert stack.jobs.status(moments.lasting[0]) == "running"  # whoever only reads waits for nobody
        time.sleep(max(0.0, began + seconds - time.monotonic()))  # the outage itself, not a wait for anything
        for worker in stack.workers:
            worker.stop()
    time.sleep(T / 3)  # who sweeps has the lock before those who were kept from renewing their leases
    for worker in stack.workers:
        worker.cont()
    moments.judge()
    assert workers(stack) == alive


@pytest.mark.slow
@own(SQLITE)
def test_a_lock_held_for_longer_than_t_loses_nothing_and_nobody_is_taken_for_dead(
    new_stack: NewStack, kind: Kind
) -> None:
    survive(new_stack(kind, slots=SLOTS, JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start(), 1.5 * T)


@pytest.mark.slow
@own(EMBEDDED)
def test_a_lock_held_for_longer_than_t_in_one_process(new_stack: NewStack, kind: Kind) -> None:
    survive(new_stack(kind, slots=SLOTS, JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start(), 1.5 * T)


@pytest.mark.slow
@own(SQLITE, EMBEDDED)
@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_lock_held_for_longer_than_anybody_waits_for_it(new_stack: NewStack, kind: Kind, begin: str) -> None:
    stack = new_stack(kind, slots=SLOTS, JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start()
    survive(stack, 75.0, begin)


@pytest.mark.slow
@pytest.mark.timeout(900)
@own(SQLITE, EMBEDDED)
def test_a_lock_held_for_five_minutes(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=SLOTS).start()
    survive(stack, 300.0)


@own(EMBEDDED)
def test_who_is_told_to_end_while_the_lock_is_held_ends_in_time(new_stack: NewStack, kind: Kind) -> None:
    ends_in_time(new_stack, kind)


@pytest.mark.slow
@own(SQLITE)
def test_a_worker_that_is_told_to_end_while_the_lock_is_held_ends_in_time(new_stack: NewStack, kind: Kind) -> None:
    ends_in_time(new_stack, kind)


def ends_in_time(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_SHUTDOWN_TIMEOUT_SECONDS="1").start()
    name = stack.name()
    job = stack.jobs.submit("hold_async", name=name)
    stack.journal.wait_start(job)
    with lock_held(stack):
        for process in [*stack.workers, stack.process]:
            ends_within(process, 1.0 + 5.0 + BUSY_SECONDS)
    assert len(stack.journal.starts(job)) == 1


@pytest.mark.slow
@own(SQLITE)
def test_children_that_replace_lost_ones_find_no_lock_that_nobody_holds(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=4).start()
    (worker,) = stack.workers
    lost = 6
    jobs: list[str] = []
    for _ in range(lost):
        # the main process is in a transaction for much of the time: it hands jobs over, beats, sweeps
        jobs += [stack.jobs.submit("noop") for _ in range(25)]
        os.kill(worker.children()[0].pid, signal.SIGKILL)
    stack.jobs.wait_idle(timeout=40)
    stack.every_slot_works()
    assert "locked" not in worker.log, worker.log_tail()


def many_jobs(new_stack: NewStack, kind: Kind, clients: int, each: int) -> None:
    """C18 (a): an API process, two workers of four slots, and many short jobs."""
    stack = new_stack(kind, slots=4).start()
    stack.worker()
    url = stack.apis[0].url

    def client(_: int) -> list[str]:
        with httpx.Client(base_url=url, timeout=30) as http:
            answers = [good(http.post("/api/v1/tasks/sample.note", json={}), 202).json() for _ in range(each)]
        return [answer["job_id"] for answer in answers]

    with ThreadPoolExecutor(clients) as pool:
        jobs = [job for batch in pool.map(client, range(clients)) for job in batch]
    stack.jobs.wait_idle(timeout=60 + clients * each / 10)
    records = {record["id"]: record for record in stack.jobs.list()}
    assert {records[job]["status"] for job in jobs} == {"completed"}
    assert sorted(line.job for line in stack.journal.starts()) == sorted(jobs)
    for process in (stack.process, *stack.workers):
        assert RAW.search(process.log) is None, process.log_tail()


@pytest.mark.slow
@own(SQLITE)
def test_two_workers_on_one_file_run_many_short_jobs_once_each(new_stack: NewStack, kind: Kind) -> None:
    many_jobs(new_stack, kind, clients=4, each=15)


@pytest.mark.slow
@own(SQLITE)
def test_two_workers_on_one_file_run_a_thousand_short_jobs_once_each(new_stack: NewStack, kind: Kind) -> None:
    many_jobs(new_stack, kind, clients=10, each=100)
