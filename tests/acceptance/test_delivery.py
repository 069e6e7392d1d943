"""A broker that delivers twice, late or never (contract, sections 1 to 3; cases C08 and, lightly, C02)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.acceptance.kinds import WITH_BROKER, own, shared
from tests.support.broker import Broker, open_broker
from tests.support.jobs import statuses
from tests.support.redis import RedisServer
from tests.support.stack import PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

T = 4.0
# a dispatched job that nobody claimed is published again from T/2 on, at the latest after 4 T
REPUBLISHED_SECONDS = 4 * T + 10


@pytest.fixture
def queued(new_stack: NewStack, kind: Kind) -> Stack:
    """No worker yet, so that messages stay where a test can take them."""
    return new_stack(kind, slots=2, JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start(worker=False)


def queued_behind_others(stack: Stack, broker: Broker, task: str, **arguments: str) -> tuple[str, bytes, bytes]:
    """A job that has started, with its message as it lay in the queue (list and text)."""
    name = stack.name()
    busy = [stack.jobs.submit("hold", name=name) for _ in range(stack.slots - stack.jobs.queue()["running"])]
    for each in busy:
        stack.journal.wait_start(each)
    job = stack.jobs.submit(task, **arguments)
    key, message = broker.wait_message(job)
    stack.journal.release(name)
    stack.journal.wait_start(job)
    return job, key, message


@shared(*WITH_BROKER)
@pytest.mark.parametrize("task", ["note", "raising"])
def test_a_message_delivered_again_after_the_end_changes_nothing(stack: Stack, task: str) -> None:
    with open_broker(stack) as broker:
        job, key, message = queued_behind_others(stack, broker, task)
        record = stack.jobs.wait(job)
        broker.push(key, message, copies=3)
        wait_until(lambda: not broker.messages(), "the copies were taken")
    for _ in range(stack.slots):
        stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert stack.jobs.record(job) == record
    assert len(stack.journal.starts(job)) == 1
    with stack.jobs.stream(job) as stream:
        assert statuses(stream.rest()) == [record["status"]]


@shared(*WITH_BROKER)
@pytest.mark.parametrize("task", ["hold", "hold_async"])
def test_a_message_delivered_again_while_the_code_runs_does_not_run_it_twice(stack: Stack, task: str) -> None:
    name = stack.name()
    with open_broker(stack) as broker:
        job, key, message = queued_behind_others(stack, broker, task, name=name)
        with stack.jobs.stream(job) as stream:
            assert stream.next().status == "running"
            broker.push(key, message, copies=3)
            wait_until(lambda: not broker.messages(), "the copies were taken")
            stack.jobs.wait(stack.jobs.submit("note"), "completed")
            assert stack.jobs.status(job) == "running"
            stack.journal.release(name)
            assert statuses(stream.rest()) == ["completed"]
    record = stack.jobs.record(job)
    assert (record["attempt"], len(stack.journal.starts(job))) == (1, 1)
    assert stack.jobs.result(job)["result"] == name


@shared(THREADS)
def test_a_run_is_still_known_to_its_worker_after_its_message_came_again(stack: Stack) -> None:
    """The worker refuses the copy in the process that runs the job: a cancel still finds the run, nobody ends it."""
    other = stack.jobs.submit("hold", name=stack.name())
    stack.journal.wait_start(other)
    with open_broker(stack) as broker:
        job, key, message = queued_behind_others(stack, broker, "hold_async", name=stack.name())
        broker.push(key, message, copies=2)
        wait_until(lambda: not broker.messages(), "the copies were taken")
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    stays(lambda: stack.jobs.status(job) == "running", "running", 3.5, interval=0.2)
    stack.jobs.cancel(job)
    stack.jobs.wait(job, "canceled", timeout=5)
    assert stack.journal.wait_end(job).how == "CancelledError"


@own(PREFORK)
def test_two_workers_that_get_the_same_message_run_it_once(queued: Stack, kind: Kind) -> None:
    jobs = [queued.jobs.submit("nap", seconds=0.05) for _ in range(12)]
    with open_broker(queued) as broker:
        some = wait_until(lambda: found if len(found := broker.messages()) > 3 else [], "some were handed over")
        for key, message in some:
            broker.push(key, message, copies=2)
        queued.worker()
        queued.worker()
        for job in jobs:
            queued.jobs.wait(job, "completed")
        wait_until(lambda: not broker.messages(), "the copies were taken")
    assert sorted(line.job for line in queued.journal.starts()) == sorted(jobs)


@own(PREFORK, SQLITE)
def test_a_lost_message_is_published_again(queued: Stack) -> None:
    job = queued.jobs.submit("note")
    with open_broker(queued) as broker:
        broker.wait_message(job)
        assert broker.remove(job) == 1
    queued.worker()
    queued.jobs.wait(job, "completed", timeout=REPUBLISHED_SECONDS)
    assert len(queued.journal.starts(job)) == 1


@own(THREADS)
def test_a_broker_that_forgot_everything_loses_no_job(queued: Stack) -> None:
    jobs = [queued.jobs.submit("note") for _ in range(30)]
    canceled = queued.jobs.submit("note")
    with open_broker(queued) as broker:
        broker.wait_message(jobs[0])
        queued.jobs.cancel(canceled)
        broker.client.flushdb()
    queued.worker()
    for job in jobs:
        queued.jobs.wait(job, "completed", timeout=REPUBLISHED_SECONDS)
    assert sorted(line.job for line in queued.journal.starts()) == sorted(jobs)


@pytest.mark.slow
@own(PREFORK)
def test_a_message_lost_beside_a_busy_worker_is_published_again(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start()
    name = stack.name()
    busy = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(busy)
    waiting = stack.jobs.submit("note")
    with open_broker(stack) as broker:
        broker.wait_message(waiting)
        assert broker.remove(waiting) == 1
    stack.journal.release(name)
    stack.jobs.wait(waiting, "completed", timeout=REPUBLISHED_SECONDS)
    assert len(stack.journal.starts(waiting)) == 1


@shared(PREFORK, THREADS)
def test_a_message_for_a_deleted_job_runs_nothing(stack: Stack) -> None:
    name = stack.name()
    busy = [stack.jobs.submit("hold", name=name) for _ in range(stack.slots)]
    for each in busy:
        stack.journal.wait_start(each)
    job = stack.jobs.submit("note")
    with open_broker(stack) as broker:
        key, message = broker.wait_message(job)
        stack.jobs.delete(job)
        broker.push(key, message)
        stack.journal.release(name)
        wait_until(lambda: not broker.messages(), "the messages were taken")
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert stack.journal.lines(job) == []
    assert stack.jobs.client.get(f"/api/v1/jobs/{job}").status_code == 404


@own(PREFORK)
def test_what_is_submitted_while_the_broker_is_down_runs_when_it_is_back(
    new_stack: NewStack, kind: Kind, own_redis: Callable[..., RedisServer]
) -> None:
    redis = own_redis()
    stack = new_stack(kind, slots=2, CELERY_BROKER_URL=redis.url(), JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start()
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    redis.kill9()
    jobs: list[str] = []
    for _ in range(3):
        began = time.monotonic()
        jobs.append(stack.jobs.submit("note"))
        assert time.monotonic() - began < 1.0 * 2
        assert len(stack.jobs.list()) == len(jobs) + 1
    canceled = stack.jobs.submit("note")
    assert stack.jobs.cancel(canceled).json()["status"] == "canceled"
    health = stack.jobs.client.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    redis.start()
    for job in jobs:
        stack.jobs.wait(job, "completed", timeout=60)
    assert [len(stack.journal.starts(job)) for job in [*jobs, canceled]] == [1, 1, 1, 0]


@pytest.mark.slow
@own(PREFORK)
def test_a_job_that_runs_while_the_broker_is_away_ends_as_it_should(
    new_stack: NewStack, kind: Kind, own_redis: Callable[..., RedisServer]
) -> None:
    redis = own_redis()
    stack = new_stack(kind, CELERY_BROKER_URL=redis.url(), JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start()
    name = stack.name()
    plain = stack.jobs.submit("hold", name=name)
    coroutine = stack.jobs.submit("hold_async", name=stack.name())
    for job in (plain, coroutine):
        stack.journal.wait_start(job)
    redis.pause()
    stack.jobs.cancel(coroutine)  # no hint can reach the worker now: it looks once a second
    stack.jobs.wait(coroutine, "canceled", timeout=15)
    stays(lambda: stack.jobs.status(plain) == "running", "a healthy job runs on without a broker", T * 1.5)
    stack.journal.release(name)
    stack.jobs.wait(plain, "completed", timeout=15)
    redis.resume()
    stack.jobs.wait(stack.jobs.submit("note"), "completed", timeout=60)
    assert len(stack.journal.starts(plain)) == 1
