"""Processes that end in the gaps of a job's life: before its claim, before its first line, before its retry."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

import httpx
import psycopg
import pytest

from tests.acceptance.kinds import own
from tests.support.broker import open_broker
from tests.support.jobs import Jobs, statuses
from tests.support.journal import overlap
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

T = 4.0
SHORT = {"JOBS_WORKER_TIMEOUT_SECONDS": f"{T:g}"}
NOTICED_SECONDS = T * 1.1 + 8.0
CHILD_NOTICED_SECONDS = 5.0 + 5.0

_WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
    "AND query LIKE 'UPDATE jobs SET%claim_token%'"
)


@contextmanager
def locked(stack: Stack, job: str) -> Generator[Callable[[], list[int]]]:
    """Holds the job's row, so that a claim waits; gives the look at who waits, whose statements end with it."""
    url = stack.service.env["DATABASE_URL"]
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as looker:
        holder.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", [job])
        yield lambda: [pid for (pid,) in looker.execute(_WAITING).fetchall()]
        # a server executes what a client that died had asked for, and would claim the job for it
        for (pid,) in looker.execute(_WAITING).fetchall():
            looker.execute("SELECT pg_terminate_backend(%s)", [pid])


def waiting_for_its_claim(stack: Stack) -> tuple[str, Callable[[], object]]:
    """A job with its message in the broker, and the wait until it is in nobody's hands but a worker's."""
    job = stack.jobs.submit("note")
    with open_broker(stack) as broker:
        broker.wait_message(job)

    def taken() -> bool:
        with open_broker(stack) as broker:
            return not broker.messages(job)

    return job, lambda: wait_until(taken, "a worker has the message")


@own(PREFORK)
def test_a_worker_that_dies_before_its_claim_loses_no_job(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start(worker=False)
    job, taken = waiting_for_its_claim(stack)
    with locked(stack, job) as waiting:
        worker = stack.worker()
        taken()
        wait_until(waiting, "the claim waits")
        worker.kill9()
    stack.worker()
    record = stack.jobs.wait(job, "completed", timeout=T + NOTICED_SECONDS)
    assert (record["attempt"], len(stack.journal.starts(job))) == (1, 1)


@own(PREFORK)
def test_a_child_that_dies_before_its_claim_loses_no_job(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start(worker=False)
    job, taken = waiting_for_its_claim(stack)
    with locked(stack, job) as waiting:
        worker = stack.worker()
        taken()
        wait_until(waiting, "the claim waits")
        os.kill(worker.children()[0].pid, signal.SIGKILL)
    record = stack.jobs.wait(job, "completed", timeout=2 * CHILD_NOTICED_SECONDS)
    assert (record["attempt"], len(stack.journal.starts(job))) == (1, 1)


def arguments_checked(stack: Stack, name: str) -> list[Path]:
    return list(stack.service.folder.glob(f"arguments-{name}-*"))


@own(PREFORK)
def test_a_child_that_dies_between_claim_and_first_line_is_a_lost_run(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start()
    plain, safe = stack.name(), stack.name()
    jobs = {name: stack.jobs.submit(f"process.{task}", name=name) for name, task in
            ((plain, "claimed"), (safe, "claimed_safely"))}  # fmt: skip
    for name, job in jobs.items():
        wait_until(lambda name=name: arguments_checked(stack, name), "it is between the two")
        assert (stack.jobs.status(job), stack.jobs.record(job)["attempt"]) == ("running", 1)
    assert stack.journal.lines() == []
    for name in jobs:
        os.kill(int(arguments_checked(stack, name)[0].name.rpartition("-")[2]), signal.SIGKILL)
    record = stack.jobs.wait(jobs[plain], "failed", timeout=CHILD_NOTICED_SECONDS)
    assert record["error"].startswith("WorkerLost: ")
    assert record["attempt"] == 1
    wait_until(lambda: len(arguments_checked(stack, safe)) == 2, "the other one begins again")
    stack.journal.release(safe)
    assert stack.jobs.wait(jobs[safe], "completed")["attempt"] == 2
    assert len(stack.journal.starts(jobs[safe])) == 1
    assert stack.journal.starts(jobs[plain]) == []


@pytest.mark.slow
@own(PREFORK)
def test_a_job_that_waits_for_its_retry_holds_no_slot(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_MAX_CONCURRENCY="1").start()
    job = stack.jobs.submit("process.backing_off", name=stack.name(), failures=2)
    stack.journal.wait_start(job)
    wait_until(lambda: stack.jobs.record(job)["status"] == "pending", "it waits for its retry")
    others = [stack.jobs.submit("nap", seconds=0.05) for _ in range(3)]
    record = stack.jobs.wait(job, "completed")
    starts = stack.journal.starts(job)
    assert (record["attempt"], len(starts)) == (3, 3)
    for after, before, seconds in ((starts[1], starts[0], 1), (starts[2], starts[1], 2)):
        assert after.at - before.at >= seconds
    for other in others:
        stack.jobs.wait(other, "completed")
        assert stack.journal.starts(other)[0].at < starts[1].at
    assert overlap(stack.journal.lines()) == 1


@own(PREFORK)
def test_a_job_that_waits_for_its_retry_survives_its_worker(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, **SHORT).start()
    job = stack.jobs.submit("retrying", name=stack.name(), countdown=3)
    first = stack.jobs.record(job)
    wait_until(lambda: stack.jobs.record(job)["attempt"] == 1 and stack.jobs.status(job) == "pending", "it waits")
    if kind.embedded:
        stack.process.kill9()
        stack.apis.clear()
        stack.api()
    else:
        stack.workers[0].kill9()
        stack.worker()
    record = stack.jobs.wait(job, "completed")
    starts = stack.journal.starts(job)
    assert (record["attempt"], len(starts)) == (2, 2)
    assert starts[1].at - starts[0].at >= 3
    assert record["submitted_at"] == first["submitted_at"]


@own(EMBEDDED)
def test_a_stream_ends_once_when_its_job_is_canceled_before_its_retry(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1).start()
    job = stack.jobs.submit("process.retrying_async", name=stack.name(), countdown=30)
    with stack.jobs.stream(job) as stream:
        waits = stream.until(lambda event: event.id == "1-3-0", "it waits for its retry", 20)
        assert waits.data is not None
        answer = stack.jobs.cancel(job).json()
        assert answer["status"] == "canceled"
        assert statuses(stream.rest()) == ["canceled"]
    for name in ("submitted_at", "started_at", "attempt"):
        assert answer[name] == waits.data[name]
    assert stack.jobs.cancel(job).json() == answer


@own(PREFORK)
def test_an_api_process_that_dies_under_submits_leaves_one_job_for_each_key(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind).start(worker=False)
    stack.api()
    first, second = (Jobs(api.client) for api in stack.apis)
    keys = [f"key-{number}" for number in range(200)]

    def submit(jobs: Jobs, key: str) -> str:
        return jobs.submit("note", headers={"Idempotency-Key": key})

    answered: dict[str, str] = {}
    once = Lock()

    def submit_once(key: str) -> None:
        with suppress(httpx.TransportError):
            answered[key] = submit(first, key)
        if len(answered) >= len(keys) // 2 and once.acquire(blocking=False):
            stack.process.kill9()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(submit_once, keys))
        assert 0 < len(answered) < len(keys)
        repeated = dict(zip(keys, pool.map(lambda key: submit(second, key), keys), strict=True))
    assert {key: repeated[key] for key in answered} == answered
    assert len(set(repeated.values())) == len(keys)
    assert len(second.list()) == len(keys)
