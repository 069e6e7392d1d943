"""Pools that grow to a raised limit (contract, section 5; case C01): to their maximum, shared, at no job's cost."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.kinds import own
from tests.support.journal import overlap
from tests.support.processes import Process
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

QUEUE = "/api/v1/queues/jobs"
MOST = 5


def holding(stack: Stack, count: int) -> tuple[list[str], list[str]]:
    """Jobs that hold until their names are released."""
    names = [stack.name() for _ in range(count)]
    return [stack.jobs.submit("hold", name=name) for name in names], names


def running(stack: Stack, jobs: list[str]) -> int:
    """How many of them are in their code."""
    return len(stack.journal.starts(*jobs)) - len(stack.journal.ends(*jobs))


def run_three(stack: Stack, limit: int | None) -> None:
    """Three jobs run to their end, never more of them at once than the limit, which is reported as it was set."""
    jobs = [stack.jobs.submit("nap", seconds=0.1) for _ in range(3)]
    records = [stack.jobs.wait(job, "completed") for job in jobs]
    assert {record["attempt"] for record in records} == {1}
    assert overlap(stack.journal.lines(*jobs)) <= (limit or MOST)
    assert stack.jobs.queue()["max_concurrency"] == limit


def at_once(stack: Stack, count: int, timeout: float = 20.0) -> None:
    """So many jobs run at once and no more, though others wait; the queue says so."""
    jobs, names = holding(stack, count + 2)
    wait_until(lambda: running(stack, jobs) == count, f"{count} run at once", timeout)
    stays(lambda: running(stack, jobs) == count, f"no more than {count} run", 0.5)
    queue = stack.jobs.queue()
    assert (queue["running"], queue["pending"], queue["canceling"]) == (count, 2, 0)
    stack.journal.release(*names)
    for job in jobs:
        assert stack.jobs.wait(job, "completed")["attempt"] == 1


def processes(worker: Process) -> int:
    """How many processes the pool of a prefork worker has."""
    return len(worker.children())


def stack_of_two_slots(new_stack: NewStack, kind: Kind, **env: Any) -> Stack:
    return new_stack(kind, slots=2, JOBS_MAX_POOL=str(MOST), **env).start()


# --- the case, step by step


@own(PREFORK, slow=(EMBEDDED, THREADS))
def test_lowering_the_limit_of_busy_slots_ends_nothing_and_holds_afterwards(new_stack: NewStack, kind: Kind) -> None:
    stack = stack_of_two_slots(new_stack, kind)
    stack.jobs.change_queue(max_concurrency=2)
    jobs, names = holding(stack, 2)
    wait_until(lambda: running(stack, jobs) == 2, "both slots are busy")
    assert stack.jobs.change_queue(max_concurrency=1)["max_concurrency"] == 1
    waiting = [stack.jobs.submit("nap", seconds=0.1) for _ in range(3)]
    stays(lambda: running(stack, jobs) == 2 and not stack.journal.starts(*waiting), "nothing ends, nothing starts", 1)
    stack.journal.release(names[0])
    assert stack.journal.wait_end(jobs[0]).how == "return"
    stays(lambda: not stack.journal.starts(*waiting), "the slot of the other one is all there is", 0.5)
    stack.journal.release(names[1])
    for job in [*jobs, *waiting]:
        assert stack.jobs.wait(job, "completed")["attempt"] == 1
    assert overlap(stack.journal.lines(*waiting)) == 1
    run_three(stack, 1)


@pytest.mark.slow
@own(PREFORK, slow=(EMBEDDED, THREADS))
def test_any_limit_of_an_idle_pool_leaves_one_that_runs_jobs(new_stack: NewStack, kind: Kind) -> None:
    stack = stack_of_two_slots(new_stack, kind)
    stack.jobs.change_queue(max_concurrency=2)
    for bad in (0, -1):
        assert stack.jobs.client.patch(QUEUE, json={"max_concurrency": bad}).status_code == 422
        run_three(stack, 2)
    for limit in (1, 3, 2, 10_000, 1, MOST, 1, 2, 10_000):
        assert stack.jobs.change_queue(max_concurrency=limit)["max_concurrency"] == limit
        run_three(stack, limit)
    at_once(stack, MOST)
    stack.jobs.change_queue(max_concurrency=1)
    at_once(stack, 1)
    stack.jobs.change_queue(max_concurrency=4)
    at_once(stack, 4)
    stack.jobs.change_queue(max_concurrency=None)
    run_three(stack, None)


@pytest.mark.slow
@own(THREADS, slow=(EMBEDDED, PREFORK))
def test_a_limit_of_ten_thousand_grows_the_pool_to_its_maximum_and_no_further(new_stack: NewStack, kind: Kind) -> None:
    stack = stack_of_two_slots(new_stack, kind)
    assert stack.jobs.change_queue(max_concurrency=10_000)["max_concurrency"] == 10_000
    at_once(stack, MOST)
    stack.jobs.change_queue(max_concurrency=20_000)
    at_once(stack, MOST)
    for worker in stack.workers:
        assert kind is not PREFORK or processes(worker) == MOST


@pytest.mark.slow
@own(PREFORK)
def test_the_maximum_of_processes_is_four_a_core(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    stack.jobs.change_queue(max_concurrency=10_000)
    most = 4 * (os.cpu_count() or 1)
    wait_until(lambda: processes(stack.workers[0]) == most, f"the pool has {most} processes", 30)
    stack.jobs.change_queue(max_concurrency=10_001)
    run_three(stack, 10_001)
    stays(lambda: processes(stack.workers[0]) == most, "and no more", 1)


@own(EMBEDDED, THREADS)
def test_hundreds_of_coroutines_run_at_once_on_a_pool_that_grew(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start()
    stack.jobs.change_queue(max_concurrency=10_000)
    name = stack.name()
    jobs = [stack.jobs.submit("hold_async", name=name) for _ in range(150)]
    wait_until(lambda: running(stack, jobs) == 150, "all run at once", 60)
    assert stack.jobs.queue()["running"] == 150
    stack.journal.release(name)
    stack.jobs.wait_idle(timeout=60)


@own(EMBEDDED)
def test_a_limit_at_start_above_the_maximum_starts_no_larger_pool(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_MAX_POOL=str(MOST), JOBS_MAX_CONCURRENCY="10000").start()
    assert stack.jobs.queue()["max_concurrency"] == 10_000
    at_once(stack, MOST)


# --- several workers


@pytest.mark.slow
@own(PREFORK)
def test_two_workers_share_the_growth(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    stack.worker()
    stack.jobs.change_queue(max_concurrency=6)
    at_once(stack, 6)
    assert [processes(worker) for worker in stack.workers] == [3, 3]
    assert stack.jobs.queue()["workers"] == 2


@own(PREFORK, THREADS)
def test_a_worker_that_starts_after_the_limit_was_raised_grows_too(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start(worker=False)
    stack.jobs.change_queue(max_concurrency=4)
    stack.worker()
    at_once(stack, 4)


@pytest.mark.slow
@own(PREFORK)
def test_a_pool_that_has_grown_stays_as_it_is_however_often_the_limit_is_set(new_stack: NewStack, kind: Kind) -> None:
    """Its heartbeat tells of the slots that it has, and not of those that it started with."""
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS="3").start()
    stack.jobs.change_queue(max_concurrency=3)
    wait_until(lambda: processes(stack.workers[0]) == 3, "the pool has grown")

    def same_again() -> bool:
        stack.jobs.change_queue(max_concurrency=3)
        return processes(stack.workers[0]) == 3

    stays(same_again, "the pool has three processes", 3, interval=0.2)
    at_once(stack, 3)


@pytest.mark.slow
@own(PREFORK)
def test_what_one_worker_has_no_room_for_the_other_takes_over(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS="2").start(worker=False)
    stack.worker("--max-pool", "1")
    stack.worker("--max-pool", "10")
    stack.jobs.change_queue(max_concurrency=6)
    at_once(stack, 6, timeout=30)
    assert [processes(worker) for worker in stack.workers] == [1, 5]


@pytest.mark.slow
@own(THREADS)
def test_a_worker_that_follows_one_that_was_killed_grows_to_its_place(new_stack: NewStack, kind: Kind) -> None:
    """When it starts, the lease of the dead one still counts."""
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS="3").start()
    stack.jobs.change_queue(max_concurrency=4)
    at_once(stack, 4)
    stack.workers.pop().kill9()
    stack.worker()
    at_once(stack, 4, timeout=30)


# --- settings


@pytest.mark.parametrize("options", [("--max-pool", "2"), ()], ids=["option", "setting"])
@own(PREFORK)
def test_a_maximum_below_the_slots_at_start_is_refused(
    new_stack: NewStack, kind: Kind, options: tuple[str, ...]
) -> None:
    stack = new_stack(kind, **({} if options else {"JOBS_MAX_POOL": "2"}))
    ended = stack.service.run("worker", "--concurrency", "3", *options)
    assert ended.returncode == 2
    assert "JOBS_MAX_POOL" in ended.stderr
    assert "3 slots" in ended.stderr


@own(EMBEDDED)
def test_a_maximum_below_the_slots_of_the_embedded_worker_is_refused(new_stack: NewStack, kind: Kind) -> None:
    ended = new_stack(kind).service.run("up", "--port", "0", "--concurrency", "3", JOBS_MAX_POOL="2")
    assert ended.returncode == 2
    assert "JOBS_MAX_POOL" in ended.stderr
