"""The broker is away, silent, full or forgetful: nothing is lost, nothing runs twice (contract, section 3; case C02).

The worker timeout is the default of a minute, so that nothing here comes right by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.broker import open_broker
from tests.support.broker_faults import Crashed, Cut, Full, Outage, Replica, Restarted, Silent
from tests.support.jobs import Jobs, statuses
from tests.support.processes import Process, alive
from tests.support.redis import RedisServer
from tests.support.stack import PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

ANSWER_SECONDS = 1.0  # of a submit, whatever the broker does
RUNS_AGAIN_SECONDS = 5.0 * 3
SLOTS = 3


@dataclass
class Before:
    """What there is when the outage begins: every slot busy, one job between two attempts, some in the queue."""

    plain: str
    coroutine: str
    retrying: str
    queued: list[str]
    canceled: str
    release: str


def prepared(stack: Stack) -> Before:
    release, never = stack.name(), stack.name()
    retrying = stack.jobs.submit("retrying", name="r", failures=1, countdown=2.0)
    stack.journal.wait_end(retrying)
    plain = [stack.jobs.submit("hold", name=release) for _ in range(SLOTS - 1)]
    coroutine = stack.jobs.submit("hold_async", name=never)
    for job in (*plain, coroutine):
        stack.journal.wait_start(job)
    queued = [stack.jobs.submit("note") for _ in range(4)]
    with open_broker(stack) as broker:
        for job in queued:
            broker.wait_message(job)
    return Before(plain[0], coroutine, retrying, queued[1:], queued[0], release)


@contextmanager
def away(outage: Outage, redis: RedisServer) -> Generator[None]:
    outage.begin(redis)
    try:
        yield
    finally:
        outage.end(redis)


def submitted_in_parallel(jobs: Jobs) -> list[str]:
    """Three at once, each answered in time while other calls are as fast."""

    def submit(_: int) -> str:
        began = time.monotonic()
        job = jobs.submit("note")
        assert time.monotonic() - began < ANSWER_SECONDS * 2
        return job

    with ThreadPoolExecutor(3) as pool:
        submits = pool.map(submit, range(3))
        for _ in range(3):
            began = time.monotonic()
            jobs.list(limit=10)
            assert time.monotonic() - began < ANSWER_SECONDS * 2
        return list(submits)


def says(process: Process) -> list[str]:
    """What our own loggers have told its operator."""
    return [line for line in process.log.splitlines() if "celery_jobs." in line and "DEBUG" not in line]


@pytest.mark.parametrize(
    ("outage", "kind"),
    [
        pytest.param(Crashed(), PREFORK, marks=pytest.mark.slow),
        pytest.param(Crashed(), SQLITE, marks=pytest.mark.slow),
        pytest.param(Restarted(), THREADS, marks=pytest.mark.slow),
        (Silent(), PREFORK),
        pytest.param(Full(), THREADS, marks=pytest.mark.slow),
        pytest.param(Replica(), PREFORK, marks=pytest.mark.slow),
        pytest.param(Cut(), SQLITE, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_job_runs_once_when_the_broker_is_back(new_stack: NewStack, kind: Kind, outage: Outage) -> None:
    with outage.server().serving() as redis:
        stack = new_stack(kind, slots=SLOTS, CELERY_BROKER_URL=redis.url()).start()
        jobs = stack.jobs
        before = prepared(stack)
        with jobs.stream(before.retrying) as stream:
            with away(outage, redis):
                new = submitted_in_parallel(jobs)
                assert jobs.cancel(before.canceled).json()["status"] == "canceled"
                jobs.cancel(before.coroutine)  # no hint arrives: its process looks once a second
                jobs.wait(before.coroutine, "canceled", timeout=5)
                if outage.degrades:
                    wait_until(lambda: health(jobs) == "degraded", "health sees it", 10)
                stack.journal.release(before.release)
                jobs.wait(before.plain, "completed", timeout=5)
            back = time.monotonic()
            for job in [*new, *before.queued, before.retrying]:
                jobs.wait(job, "completed", timeout=RUNS_AGAIN_SECONDS - (time.monotonic() - back))
            assert statuses(stream.rest())[-2:] == ["running", "completed"]
        assert [len(stack.journal.starts(job)) for job in [*new, *before.queued]] == [1] * 6
        assert [len(stack.journal.starts(job)) for job in (before.retrying, before.canceled)] == [2, 0]
        assert jobs.record(before.retrying)["attempt"] == 2
        wait_until(lambda: health(jobs) == "healthy", "health sees that it is over", 15)
        stack.every_slot_works()
        hints_arrive_again(stack)
        assert len(says(stack.process)) <= 4, says(stack.process)


def health(jobs: Jobs) -> str:
    """Which answers in about a second at most, whatever is the matter."""
    began = time.monotonic()
    answer = jobs.client.get("/health")
    assert answer.status_code == 200
    assert time.monotonic() - began < 1.0 + ANSWER_SECONDS
    return answer.json()["status"]


def hints_arrive_again(stack: Stack) -> None:
    """The control mailbox of the worker works on its new connection: a cancel does not wait for the look."""

    def latency() -> float:
        job = stack.jobs.submit("hold_async", name=stack.name())
        stack.journal.wait_start(job)
        asked = time.time()
        stack.jobs.cancel(job)
        return stack.journal.wait_end(job).at - asked

    assert min(latency() for _ in range(3)) < 0.2


def test_a_message_that_is_fetched_while_the_broker_is_full_is_not_lost(new_stack: NewStack) -> None:
    """Redis hands it out and refuses to note that it did; Celery's own worker ends at that."""
    with RedisServer().serving() as redis:
        stack = new_stack(PREFORK, slots=1, CELERY_BROKER_URL=redis.url()).start()
        name = stack.name()
        busy = stack.jobs.submit("hold", name=name)
        stack.journal.wait_start(busy)
        queued = [stack.jobs.submit("note") for _ in range(3)]
        with open_broker(stack) as broker:
            broker.wait_message(queued[-1])
            with away(Full(), redis):
                stack.journal.release(name)
                stack.jobs.wait(busy, "completed")
                wait_until(lambda: len(broker.messages()) < 3, "the worker fetches one")
        for job in queued:
            stack.jobs.wait(job, "completed", timeout=RUNS_AGAIN_SECONDS)
        assert [len(stack.journal.starts(job)) for job in queued] == [1] * 3
        assert stack.workers[0].running


@pytest.mark.slow
def test_processes_start_and_end_without_a_broker(new_stack: NewStack) -> None:
    """Down at the start, silent at the end, where a worker has a job to finish."""
    with RedisServer().serving() as redis:
        stack = new_stack(THREADS, CELERY_BROKER_URL=redis.url())
        redis.kill9()
        stack.start(worker=False)
        worker = stack.worker(ready=False)
        job = stack.jobs.submit("note")
        worker.wait_for_log("the broker is not reachable")
        redis.start()
        stack.jobs.wait(job, "completed", timeout=RUNS_AGAIN_SECONDS)
        name = stack.name()
        last = stack.jobs.submit("hold", name=name)
        stack.journal.wait_start(last)
        redis.pause()
        waiting = stack.jobs.submit("note")
        worker.terminate()
        stack.journal.release(name)
        stack.jobs.wait(last, "completed", timeout=5)
        assert stack.jobs.status(waiting) == "pending"
        assert worker.wait(20) == 0
        began = time.monotonic()
        stack.process.terminate()
        assert stack.process.wait(10) == 0
        assert time.monotonic() - began < 5.0


def test_a_child_that_is_killed_before_the_first_connection_ends_no_worker(new_stack: NewStack) -> None:
    with RedisServer().serving() as redis:
        stack = new_stack(PREFORK, CELERY_BROKER_URL=redis.url()).start(worker=False)
        redis.kill9()
        worker = stack.worker(ready=False)
        worker.wait_for_log("the broker is not reachable")
        child = worker.children()[-1]
        child.kill()
        wait_until(lambda: not alive(child), "the child is gone")
        redis.start()
        jobs = [stack.jobs.submit("note") for _ in range(4)]
        for job in jobs:
            stack.jobs.wait(job, "completed", timeout=RUNS_AGAIN_SECONDS)
        assert worker.running


@pytest.mark.slow
def test_a_worker_that_dies_without_a_broker_is_noticed(new_stack: NewStack) -> None:
    """Sweeping needs the database alone, and a silent broker holds up nobody who waits or watches."""
    timeout = 4.0
    with RedisServer().serving() as redis:
        stack = new_stack(PREFORK, CELERY_BROKER_URL=redis.url(), JOBS_WORKER_TIMEOUT_SECONDS=f"{timeout:g}").start()
        job = stack.jobs.submit("hold", name=stack.name())
        stack.journal.wait_start(job)
        time.sleep(timeout)  # the API process may judge from here on
        redis.pause()
        with stack.jobs.stream(job) as stream:
            assert stream.next().status == "running"
            stack.workers[0].kill9()
            died = time.monotonic()
            answer = stack.jobs.client.get(f"/api/v1/jobs/{job}", headers={"Prefer": "wait=30"})
            assert time.monotonic() - died < timeout * 1.1 + 3.0
            assert statuses(stream.rest()) == ["failed"]
        assert answer.json()["error"].startswith("WorkerLost")
        redis.resume()
        stack.worker()
        stack.jobs.wait(stack.jobs.submit("note"), "completed", timeout=RUNS_AGAIN_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("outage", [Silent(), Crashed()], ids=str)
@pytest.mark.parametrize("kind", [PREFORK, THREADS, SQLITE, None], ids=lambda kind: str(kind or "up"))
def test_an_outage_of_half_a_minute(new_stack: NewStack, kind: Kind | None, outage: Outage) -> None:
    """Longer than any back-off hides; also of `celery-jobs up`, which runs API and worker side by side."""
    with outage.server().serving() as redis:
        stack = new_stack(kind or PREFORK, slots=SLOTS, CELERY_BROKER_URL=redis.url())
        if kind is None:
            stack.apis.append(stack.service.up("--concurrency", str(SLOTS)))
        else:
            stack.start()
        jobs = stack.jobs
        before = prepared(stack)
        with away(outage, redis):
            new = submitted_in_parallel(jobs)
            jobs.change_queue(max_concurrency=SLOTS + 1)
            ends = time.monotonic() + 30.0
            while time.monotonic() < ends:
                began = time.monotonic()
                jobs.list(limit=10)
                assert time.monotonic() - began < ANSWER_SECONDS * 2
                assert health(jobs) == "degraded" or began < ends - 28.0
                time.sleep(0.5)
            stack.journal.release(before.release)
        back = time.monotonic()
        for job in [*new, *before.queued, before.canceled, before.retrying]:
            jobs.wait(job, "completed", timeout=RUNS_AGAIN_SECONDS - (time.monotonic() - back))
        once = [*new, *before.queued, before.canceled, before.plain, before.coroutine]
        assert [len(stack.journal.starts(job)) for job in once] == [1] * len(once)
        hints_arrive_again(stack)
        jobs.cancel(before.coroutine)
        stack.slots = SLOTS + 1  # the pool grows to the limit that was raised meanwhile
        stack.every_slot_works()
        assert len(says(stack.process)) <= 8, says(stack.process)
        stack.process.terminate()
        assert stack.process.wait(20) == 0
