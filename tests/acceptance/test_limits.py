"""Limits and order (contract, section 5; case C01): exact over processes, at once, at no running job's cost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import Jobs
from tests.support.journal import overlap
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

QUEUE = "/api/v1/queues/jobs"


def holding(stack: Stack, count: int) -> tuple[list[str], list[str]]:
    """Jobs that hold, submitted in this order, and the names under which they do."""
    names = [stack.name() for _ in range(count)]
    return [stack.jobs.submit("hold", name=name) for name in names], names


def running(stack: Stack, jobs: list[str]) -> int:
    """How many of them are in their code."""
    return len(stack.journal.starts(*jobs)) - len(stack.journal.ends(*jobs))


@pytest.mark.slow
@own(PREFORK, slow=(THREADS, SQLITE))
def test_a_limit_is_exact_over_processes_while_it_changes(new_stack: NewStack, kind: Kind) -> None:
    """No moment with more running than the highest limit that was in force; the limit goes up and down, and pauses."""
    highest = 3
    stack = new_stack(kind, slots=3).start()
    stack.worker()
    stack.api()
    clients = [Jobs(api.client) for api in stack.apis]
    stack.jobs.change_queue(max_concurrency=highest)
    done = Event()

    def meddle() -> int:
        dice = random.Random(3)
        for number in itertools.count():
            if done.wait(0.02):
                return number
            limit, paused = dice.randint(1, highest), dice.random() < 0.2
            clients[number % 2].change_queue(max_concurrency=limit, paused=paused)
        raise AssertionError

    with ThreadPoolExecutor(9) as pool:
        meddling = pool.submit(meddle)
        jobs = list(pool.map(lambda n: clients[n % 2].submit("nap", seconds=0.01), range(200)))
        try:
            wait_until(lambda: len(stack.journal.starts()) >= 60, "many ran while the limit changed", 60)
        finally:
            done.set()
        assert meddling.result() > 10
    stack.jobs.change_queue(max_concurrency=highest, paused=False)
    for job in jobs:
        stack.jobs.wait(job, "completed", timeout=60)
    assert overlap(stack.journal.lines()) <= highest
    assert sorted(line.job for line in stack.journal.starts()) == sorted(jobs)


@shared(EMBEDDED, PREFORK)
def test_a_limit_of_one_runs_one_at_a_time_in_the_order_of_submission(stack: Stack) -> None:
    stack.jobs.change_queue(max_concurrency=1)
    jobs = [stack.jobs.submit("note") for _ in range(25)]
    stack.jobs.wait(jobs[-1], "completed")
    assert [line.job for line in stack.journal.starts(*jobs)] == jobs
    assert overlap(stack.journal.lines(*jobs)) == 1


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_waiting_jobs_start_by_priority_then_in_the_order_of_submission(stack: Stack) -> None:
    stack.jobs.change_queue(max_concurrency=1)
    (busy,), (name,) = holding(stack, 1)
    stack.journal.wait_start(busy)
    given = [0, 50, 0, 100, 50, 1, 100, 0]
    jobs = [stack.jobs.submit("note", params={"priority": priority}) for priority in given]
    stack.journal.release(name)
    for job in jobs:
        stack.jobs.wait(job, "completed")
    expected = [job for _, job in sorted(zip(given, jobs, strict=True), key=lambda pair: -pair[0])]
    assert [line.job for line in stack.journal.starts(*jobs)] == expected


@shared(EMBEDDED, PREFORK)
def test_a_limit_that_is_none_is_refused_and_the_old_one_stays(stack: Stack) -> None:
    stack.jobs.change_queue(max_concurrency=1)
    bad: list[Any] = [0, -1, True, "x", 1.5, {}, [1]]
    for value in bad:
        answer = stack.jobs.client.patch(QUEUE, json={"max_concurrency": value})
        assert answer.status_code == 422, value
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:servicekit:error:validation-failed"
        assert stack.jobs.queue()["max_concurrency"] == 1
    for body in ({"paused": "maybe"}, {"paused": None}, {"max": 1}):
        assert stack.jobs.client.patch(QUEUE, json=body).status_code == 422, body
    jobs, names = holding(stack, 2)
    stack.journal.wait_start(jobs[0])
    stays(lambda: running(stack, jobs) == 1, "the old limit holds", 1)
    stack.journal.release(*names)
    stack.jobs.wait_idle()


@shared(EMBEDDED, PREFORK, THREADS)
def test_raising_admits_at_once_and_lowering_never_interrupts(stack: Stack) -> None:
    stack.jobs.change_queue(max_concurrency=1)
    jobs, names = holding(stack, 6)
    stack.journal.wait_start(jobs[0])
    stays(lambda: running(stack, jobs) == 1, "one runs", 0.5)
    assert stack.jobs.change_queue(max_concurrency=3)["max_concurrency"] == 3
    wait_until(lambda: running(stack, jobs) == 3, "three run", 10)
    stack.jobs.change_queue(max_concurrency=1)
    stays(lambda: running(stack, jobs) == 3, "nobody is interrupted, nobody starts", 1)
    stack.journal.release(*names[:2])
    wait_until(lambda: running(stack, jobs) == 1, "two have ended")
    stays(lambda: running(stack, jobs) == 1, "the new limit holds", 1)
    queue = stack.jobs.queue()
    assert (queue["running"], queue["pending"], queue["max_concurrency"]) == (1, 3, 1)
    stack.jobs.change_queue(max_concurrency=None)
    wait_until(lambda: running(stack, jobs) == 4, "without a limit, all that wait run", 10)
    stack.journal.release(*names)
    for job in jobs:
        stack.jobs.wait(job, "completed")


@shared(EMBEDDED, PREFORK, THREADS)
def test_every_slot_takes_a_job_however_the_last_ones_ended(stack: Stack) -> None:
    for _ in range(12):
        for job in [stack.jobs.submit("noop") for _ in range(3)]:
            stack.jobs.wait(job, "completed")
        jobs, names = holding(stack, stack.slots)
        for job in jobs:
            stack.journal.wait_start(job, timeout=10)
        stack.journal.release(*names)
        stack.jobs.wait_idle()


@own(PREFORK, slow=(EMBEDDED, THREADS))
def test_a_limit_above_the_slots_grows_the_pool(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start()
    jobs, names = holding(stack, 4)
    wait_until(lambda: running(stack, jobs) == 2, "the pool is full")
    assert stack.jobs.change_queue(max_concurrency=4)["max_concurrency"] == 4
    wait_until(lambda: running(stack, jobs) == 4, "the pool has grown", 15)
    stack.journal.release(*names)
    for job in jobs:
        stack.jobs.wait(job, "completed")


@own(EMBEDDED, PREFORK)
def test_a_limit_of_ten_thousand_is_accepted_and_jobs_run(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start()
    assert stack.jobs.change_queue(max_concurrency=10_000)["max_concurrency"] == 10_000
    for limit in (10_000, 1, 2):
        stack.jobs.change_queue(max_concurrency=limit)
        for job in [stack.jobs.submit("note") for _ in range(3)]:
            stack.jobs.wait(job, "completed")
        assert stack.jobs.queue()["max_concurrency"] == limit


@shared(EMBEDDED, PREFORK, THREADS)
def test_a_paused_queue_starts_nothing_and_goes_on_afterwards(stack: Stack) -> None:
    busy, names = holding(stack, stack.slots)
    for job in busy:
        stack.journal.wait_start(job)
    waiting = [stack.jobs.submit("note") for _ in range(5)]  # handed over to the broker, but not started
    assert stack.jobs.change_queue(paused=True)["paused"] is True
    late = stack.jobs.submit("note")
    assert {stack.jobs.status(job) for job in busy} == {"running"}
    stack.journal.release(*names)
    for job in busy:
        stack.jobs.wait(job, "completed")
    stays(lambda: not stack.journal.starts(*waiting, late), "nothing starts", 1.5)
    queue = stack.jobs.queue()
    assert (queue["paused"], queue["pending"], queue["running"]) == (True, 6, 0)
    stack.jobs.change_queue(paused=False)
    for job in [*waiting, late]:
        stack.jobs.wait(job, "completed")
    assert sorted(line.job for line in stack.journal.starts(*waiting, late)) == sorted([*waiting, late])


@own(PREFORK)
def test_lowering_takes_back_what_was_handed_to_the_broker(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start(worker=False)
    jobs, names = holding(stack, 6)
    stack.jobs.change_queue(max_concurrency=1)
    stack.worker()
    for job, name in zip(jobs, names, strict=True):
        stack.journal.wait_start(job)
        stack.journal.release(name)
    stack.jobs.wait(jobs[-1], "completed")
    assert overlap(stack.journal.lines()) == 1
    assert [line.job for line in stack.journal.starts()] == jobs


@own(EMBEDDED, slow=(PREFORK,))
def test_the_limit_at_start_gives_way_to_one_set_at_run_time_also_after_a_restart(
    new_stack: NewStack, kind: Kind
) -> None:
    stack = new_stack(kind, slots=4, JOBS_MAX_CONCURRENCY="2").start()
    assert stack.jobs.queue()["max_concurrency"] == 2
    jobs, names = holding(stack, 4)
    wait_until(lambda: running(stack, jobs) == 2, "two run")
    stays(lambda: running(stack, jobs) == 2, "the limit at start holds", 0.5)
    stack.jobs.change_queue(max_concurrency=3)
    wait_until(lambda: running(stack, jobs) == 3, "three run")
    stack.journal.release(*names)
    stack.jobs.wait_idle()
    stack.process.end()
    stack.apis.clear()
    stack.api()
    assert stack.jobs.queue()["max_concurrency"] == 3
    jobs, names = holding(stack, 4)
    wait_until(lambda: running(stack, jobs) == 3, "three run")
    stays(lambda: running(stack, jobs) == 3, "the value set at run time holds", 0.5)
    stack.journal.release(*names)
    stack.jobs.wait_idle()


@own(EMBEDDED)
def test_no_limit_at_start_changes_nothing(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_MAX_CONCURRENCY="2").start()
    stack.process.end()
    stack.apis.clear()
    del stack.service.env["JOBS_MAX_CONCURRENCY"]
    stack.api()
    assert stack.jobs.queue()["max_concurrency"] == 2


@shared(EMBEDDED, PREFORK, THREADS)
def test_a_deleted_job_counts_until_its_code_has_ended(stack: Stack) -> None:
    stack.jobs.change_queue(max_concurrency=1)
    (job,), (name,) = holding(stack, 1)
    stack.journal.wait_start(job)
    following = stack.jobs.submit("note")
    stack.jobs.delete(job)
    stays(lambda: not stack.journal.starts(following), "the slot is taken", 1.5)
    assert stack.journal.ends(job) == []
    stack.journal.release(name)
    stack.jobs.wait(following, "completed")
    assert stack.journal.wait_end(job).how == "return"


@shared(EMBEDDED, PREFORK)
def test_queues_have_limits_of_their_own(stack: Stack) -> None:
    stack.jobs.change_queue(max_concurrency=1)
    jobs, names = holding(stack, 2)
    stack.journal.wait_start(jobs[0])
    name = stack.name()
    others = [stack.jobs.submit("elsewhere", name=name) for _ in range(2)]
    for other in others:
        stack.journal.wait_start(other)
    assert stack.jobs.queue("other")["max_concurrency"] is None
    assert stack.jobs.queue("other")["running"] == 2
    assert {"jobs", "other"} <= {queue["name"] for queue in stack.jobs.client.get("/api/v1/queues").json()}
    assert stack.jobs.client.get("/api/v1/queues/nosuch").status_code == 404
    assert stack.jobs.client.patch("/api/v1/queues/nosuch", json={"paused": True}).status_code == 404
    stack.journal.release(name, *names)
    for job in [*jobs, *others]:
        stack.jobs.wait(job, "completed")


@own(EMBEDDED)
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_bad_limit_at_start_stops_the_start(new_stack: NewStack, kind: Kind, value: str) -> None:
    stack = new_stack(kind)
    ended = stack.service.run("up", "--port", "0", JOBS_MAX_CONCURRENCY=value)
    assert ended.returncode == 2
    assert "JOBS_MAX_CONCURRENCY" in ended.stderr
