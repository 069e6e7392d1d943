"""Cancelling (contract, section 2): who never runs, who is interrupted, and who is only asked."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.kinds import own, shared
from tests.support.broker import open_broker
from tests.support.jobs import statuses
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

INTERRUPT_SECONDS = 0.2 * 5
MILLISECOND = 0.001  # SQLite's clock has nothing finer

NewStack = Callable[..., Stack]


def at(record: dict[str, Any], field: str) -> float:
    return datetime.fromisoformat(record[field]).timestamp()


@pytest.mark.parametrize(("kind", "copies"), [(THREADS, 1), pytest.param(SQLITE, 0, marks=pytest.mark.slow)], ids=str)
def test_a_job_canceled_while_no_worker_is_up_never_runs(new_stack: NewStack, kind: Kind, copies: int) -> None:
    stack = new_stack(kind, slots=1).start(worker=False)
    job = stack.jobs.submit("note")
    with open_broker(stack) as broker:
        broker.push(*broker.wait_message(job), copies=copies)
    answer = stack.jobs.cancel(job).json()
    assert (answer["status"], answer["started_at"], answer["attempt"]) == ("canceled", None, 0)
    assert answer["finished_at"] is not None
    stack.worker()
    later = stack.jobs.submit("note")  # behind it in the queue
    stack.jobs.wait(later, "completed")
    with open_broker(stack) as broker:
        wait_until(lambda: not broker.messages(), "every message was taken")
    assert stack.journal.lines(job) == []
    assert stack.jobs.record(job) == {**answer}


@shared(EMBEDDED, PREFORK, THREADS)
def test_a_job_canceled_while_all_slots_are_busy_never_runs(stack: Stack) -> None:
    name = stack.name()
    busy = [stack.jobs.submit("hold", name=name) for _ in range(stack.slots)]
    for job in busy:
        stack.journal.wait_start(job)
    waiting = stack.jobs.submit("note")
    assert stack.jobs.cancel(waiting).json()["status"] == "canceled"
    last = stack.jobs.submit("note")
    stack.journal.release(name)
    stack.jobs.wait(last, "completed")
    for job in busy:
        stack.jobs.wait(job, "completed")
    assert stack.journal.lines(waiting) == []
    assert stack.jobs.status(waiting) == "canceled"


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_running_coroutine_is_interrupted(stack: Stack) -> None:
    job = stack.jobs.submit("hold_async", name=stack.name())
    stack.journal.wait_start(job)
    answer = stack.jobs.cancel(job).json()
    assert answer["status"] in ("canceling", "canceled")
    assert answer["cancel_mode"] == "interrupt"
    record = stack.jobs.wait(job, "canceled")
    assert at(record, "finished_at") - at(record, "cancel_requested_at") <= INTERRUPT_SECONDS
    end = stack.journal.wait_end(job)
    assert end.how == "CancelledError"
    assert end.at <= at(record, "finished_at") + MILLISECOND


@shared(EMBEDDED, PREFORK, THREADS)
def test_a_coroutine_that_swallows_the_cancel_is_canceled_when_it_returns(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("swallow", name=name)
    stack.journal.wait_start(job)
    stack.jobs.cancel(job)
    wait_until(lambda: [line for line in stack.journal.lines(job) if line.event == "swallowed"], "it was interrupted")
    stays(lambda: stack.jobs.status(job) == "canceling", "canceling", 0.5)
    stack.journal.release(name)
    record = stack.jobs.wait(job, "canceled")
    assert stack.journal.wait_end(job).at <= at(record, "finished_at") + MILLISECOND
    assert stack.jobs.result(job)["result"] is None


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
@pytest.mark.parametrize("ending", ["return", "raise"])
def test_a_plain_function_is_canceling_until_its_code_has_ended(stack: Stack, ending: str) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold", name=name, ending=ending)
    stack.journal.wait_start(job)
    answer = stack.jobs.cancel(job).json()
    assert (answer["status"], answer["finished_at"], answer["cancel_mode"]) == ("canceling", None, "wait")
    assert answer["cancel_requested_at"] is not None
    stays(lambda: stack.jobs.status(job) == "canceling", "canceling", 1.0)
    stack.journal.release(name)
    record = stack.jobs.wait(job, "canceled")
    assert stack.journal.wait_end(job).at <= at(record, "finished_at") + MILLISECOND
    assert stack.jobs.result(job)["result"] is None


@shared(EMBEDDED, PREFORK, THREADS)
def test_a_canceling_plain_function_keeps_its_slot(stack: Stack) -> None:
    stack.jobs.change_queue(max_concurrency=1)
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    following = stack.jobs.submit("note")
    stack.jobs.cancel(job)
    stays(lambda: not stack.journal.starts(following), "the next job does not start", 1.5)
    queue = stack.jobs.queue()
    assert (queue["running"], queue["canceling"], queue["pending"]) == (0, 1, 1)
    stack.journal.release(name)
    stack.jobs.wait(following, "completed")
    assert stack.jobs.status(job) == "canceled"
    assert stack.journal.ends(job)[0].at <= stack.journal.starts(following)[0].at


@shared(EMBEDDED, PREFORK, THREADS)
@pytest.mark.parametrize(("task", "how"), [("checkpointing", "JobCanceled"), ("looking", "return")])
def test_a_plain_function_that_looks_stops_early(stack: Stack, task: str, how: str) -> None:
    job = stack.jobs.submit(task, name=stack.name())
    stack.journal.wait_start(job)
    stack.jobs.cancel(job)
    record = stack.jobs.wait(job, "canceled", timeout=10)
    assert stack.journal.wait_end(job).how == how
    assert record["started_at"] is not None


@shared(EMBEDDED, PREFORK)
def test_cancelling_again_is_fine(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    first = stack.jobs.cancel(job).json()
    second = stack.jobs.cancel(job).json()
    assert second["status"] == "canceling"
    assert second["cancel_requested_at"] == first["cancel_requested_at"]
    stack.journal.release(name)
    ended = stack.jobs.wait(job, "canceled")
    assert stack.jobs.cancel(job).json() == ended


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(("task", "status"), [("note", "completed"), ("raising", "failed")])
def test_a_finished_job_cannot_be_canceled(stack: Stack, task: str, status: str) -> None:
    job = stack.jobs.submit(task)
    record = stack.jobs.wait(job, status)
    answer = stack.jobs.cancel(job, 409)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:servicekit:error:conflict"
    assert stack.jobs.record(job) == record


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
@pytest.mark.parametrize("task", ["nap", "nap_async"])
def test_cancel_and_finish_at_the_same_moment_have_one_winner(stack: Stack, task: str) -> None:
    """The answer says which, the record agrees, and a job that was canceled before its start never starts."""
    raced = race_until_both_won(stack, task)
    for job, status, answer in raced:
        record = stack.jobs.wait(job)
        assert record["status"] == ("canceled" if status == 202 else "completed"), (answer, record)
        starts = len(stack.journal.starts(job))
        assert starts <= (0 if record["started_at"] is None else 1), (answer, record)
    ended = {job: stack.jobs.record(job) for job, _, _ in raced}
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert {job: stack.jobs.record(job) for job in ended} == ended


def race_until_both_won(stack: Stack, task: str) -> list[tuple[str, int, dict[str, Any]]]:
    """Job, status and body of each cancel; later and later ones, until some came too late on any machine."""
    dice = random.Random(7)

    def race(longest: float) -> tuple[str, int, dict[str, Any]]:
        job = stack.jobs.submit(task, seconds=0.02)
        time.sleep(dice.uniform(0, longest))
        answer = stack.jobs.cancel(job, 202, 409)
        return job, answer.status_code, answer.json()

    raced: list[tuple[str, int, dict[str, Any]]] = []
    with ThreadPoolExecutor(6) as pool:
        for longest in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6):
            raced += pool.map(race, [longest] * 30)
            if len({status for _, status, _ in raced}) == 2:
                return raced
    raise AssertionError(f"no job finished before its cancel: {raced[-1]}")


@shared(EMBEDDED, PREFORK)
def test_a_stream_tells_canceling_and_canceled(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "running"
        stack.jobs.cancel(job)
        assert stream.next().status == "canceling"
        stack.journal.release(name)
        assert statuses(stream.rest()) == ["canceled"]


@shared(EMBEDDED, THREADS)
def test_force_on_a_plain_function_in_a_thread_is_refused_and_changes_nothing(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    before = stack.jobs.record(job)
    answer = stack.jobs.cancel(job, 409, force=True)
    assert answer.headers["content-type"] == "application/problem+json"
    assert stack.jobs.record(job) == before
    stack.journal.release(name)
    stack.jobs.wait(job, "completed")


@shared(EMBEDDED, PREFORK)
def test_force_on_a_coroutine_is_like_a_plain_cancel(stack: Stack) -> None:
    job = stack.jobs.submit("hold_async", name=stack.name())
    stack.journal.wait_start(job)
    stack.jobs.cancel(job, force=True)
    stack.jobs.wait(job, "canceled", timeout=5)
    assert stack.journal.wait_end(job).how == "CancelledError"


@pytest.mark.slow
@own(PREFORK)
def test_force_ends_the_process_that_runs_a_plain_function(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_CANCEL_GRACE_SECONDS="1").start()
    name = stack.name()
    forced, neighbour = (stack.jobs.submit("hold", name=each) for each in (stack.name(), name))
    pid = stack.journal.wait_start(forced).pid
    stack.journal.wait_start(neighbour)
    assert stack.jobs.cancel(forced, force=True).json()["cancel_mode"] == "force"
    stack.jobs.wait(forced, "canceled", timeout=15)
    assert pid not in {child.pid for child in stack.workers[0].children()}
    assert stack.jobs.status(neighbour) == "running"
    stack.jobs.wait(stack.jobs.submit("note"), "completed")  # the pool has replaced it
    stack.journal.release(name)
    stack.jobs.wait(neighbour, "completed")
