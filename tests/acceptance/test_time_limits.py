"""Time limits (contract, section 6): for anything on prefork, for coroutines in a pool of threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.kinds import own, shared
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Kind, Stack
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

SOFT = "SoftTimeLimitExceeded: the job ran for longer than its soft time limit of 1 s"
SOON_SECONDS = 5.0  # on a busy machine


def seconds(record: dict[str, Any]) -> float:
    moments = [datetime.fromisoformat(record[name]) for name in ("started_at", "finished_at")]
    return (moments[1] - moments[0]).total_seconds()


def log_of(stack: Stack) -> str:
    return (stack.process if stack.kind.embedded else stack.workers[0]).log


@shared(EMBEDDED, PREFORK, THREADS)
def test_a_coroutine_over_its_soft_limit_fails_and_says_which(stack: Stack) -> None:
    job = stack.jobs.submit("limits.soft", name=stack.name())
    record = stack.jobs.wait(job, "failed")
    assert record["error"] == SOFT
    assert "until_released" in record["error_traceback"]
    assert 0.9 < seconds(record) < 1 + SOON_SECONDS
    assert stack.journal.wait_end(job).how == "SoftTimeLimitExceeded"
    stack.every_slot_works()


@shared(PREFORK)
def test_a_plain_function_on_prefork_fails_with_the_same_words(stack: Stack) -> None:
    job = stack.jobs.submit("limits.soft_plain", name=stack.name())
    assert stack.jobs.wait(job, "failed")["error"] == SOFT
    assert stack.journal.wait_end(job).how == "SoftTimeLimitExceeded"


@shared(PREFORK)
def test_a_soft_limit_is_raised_in_the_code_of_the_job_and_nowhere_else(stack: Stack) -> None:
    """One that passes between the claim and the code, or while the end is recorded, makes no run fail."""
    name = stack.name()
    seen = len(log_of(stack))
    job = stack.jobs.submit("limits.held", name=name)
    wait_until(lambda: "Soft time limit" in log_of(stack)[seen:], "the limit has passed")
    stack.journal.release(name)
    stack.jobs.wait(job, "completed")


@shared(EMBEDDED, PREFORK, THREADS)
@pytest.mark.parametrize("inside", ["sleep", "group", "timeout", "gather", "child"])
def test_a_coroutine_may_catch_its_soft_limit_wherever_it_waits_and_go_on(stack: Stack, inside: str) -> None:
    job = stack.jobs.submit("limits.caught", name=stack.name(), inside=inside)
    stack.jobs.wait(job, "completed")
    assert stack.jobs.result(job)["result"] == SOFT.partition(": ")[2]
    lines = stack.journal.lines(job)
    # the limit was no cancel to what came after it
    assert [line.event for line in lines if line.event in ("timed out", "group failed")] == [
        "timed out",
        "group failed",
    ]
    ended = [line.how for line in lines if line.event == "child"]
    assert ended == ["CancelledError"] * (1 if inside in ("sleep", "child") else 2), "no task of its own lives on"


@shared(EMBEDDED, THREADS)
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_coroutine_over_its_hard_limit_is_ended_whatever_it_swallows(stack: Stack, stubborn: bool) -> None:
    job = stack.jobs.submit("limits.hard", name=stack.name(), stubborn=stubborn)
    record = stack.jobs.wait(job, "failed")
    assert record["error"] == "TimeLimitExceeded: the job ran for longer than its hard time limit of 1 s"
    assert 0.9 < seconds(record) < 1 + SOON_SECONDS
    told = stack.journal.lines(job)
    assert "soft" in [line.event for line in told]
    swallowed = ["CancelledError", "GeneratorExit"] if stubborn else ["CancelledError"]
    assert [line.how for line in told if line.event == "swallowed"] == swallowed
    stays(lambda: len(stack.journal.lines(job)) == len(told), "its code has ended", 0.3)
    assert stubborn or [line.mark for line in told if line.event == "cleaned up"] == [job]
    stack.every_slot_works()


@shared(PREFORK)
def test_a_coroutine_on_prefork_that_swallows_its_soft_limit_ends_with_its_process(stack: Stack) -> None:
    job = stack.jobs.submit("limits.hard", name=stack.name(), stubborn=True)
    record = stack.jobs.wait(job, "failed")
    assert record["error"] == "TimeLimitExceeded: the job ran for longer than its hard time limit of 1 s"
    assert "soft" in [line.event for line in stack.journal.lines(job)]
    stack.every_slot_works()


@shared(EMBEDDED, PREFORK, THREADS)
def test_a_soft_limit_may_be_a_reason_to_try_again(stack: Stack) -> None:
    job = stack.jobs.submit("limits.again", name=stack.name())
    record = stack.jobs.wait(job, "failed")
    assert (record["error"], record["attempt"]) == (SOFT, 2)


@shared(EMBEDDED, PREFORK)
def test_a_hard_limit_is_none(stack: Stack) -> None:
    job = stack.jobs.submit("limits.hard_never_again", name=stack.name())
    record = stack.jobs.wait(job, "failed")
    assert record["error"] == "TimeLimitExceeded: the job ran for longer than its hard time limit of 0.5 s"
    assert record["attempt"] == 1


@shared(EMBEDDED, PREFORK, THREADS)
def test_limits_of_the_message_win_over_those_of_the_task(stack: Stack) -> None:
    limited = sent(stack, task="limitless", soft=0.5)
    assert stack.jobs.wait(limited, "failed")["error"].endswith("soft time limit of 0.5 s")
    ended = sent(stack, task="limitless", hard=0.5)
    assert stack.jobs.wait(ended, "failed")["error"].endswith("hard time limit of 0.5 s")
    sooner = sent(stack, task="soft", soft=0.5)
    assert stack.jobs.wait(sooner, "failed")["error"].endswith("soft time limit of 0.5 s")


def sent(stack: Stack, **limits: Any) -> str:
    """The id of a job that was sent past the service."""
    sender = stack.jobs.submit("limits.send", name=stack.name(), **limits)
    stack.jobs.wait(sender, "completed")
    path = f"/api/v1/jobs/{stack.jobs.result(sender)['result']}"
    wait_until(lambda: stack.jobs.client.get(path).status_code == 200, "it is recorded")
    return stack.jobs.client.get(path).json()["id"]


@own(EMBEDDED, PREFORK, THREADS)
def test_limits_of_the_app_hold_for_tasks_without_any(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind)
    stack.service.module("celeryconfig", "task_soft_time_limit = 0.5\ntask_time_limit = 20")
    stack.start()
    job = stack.jobs.submit("limits.limitless", name=stack.name())
    later = stack.jobs.submit("limits.soft", name=stack.name())
    assert stack.jobs.wait(job, "failed")["error"].endswith("soft time limit of 0.5 s")
    assert stack.jobs.wait(later, "failed")["error"] == SOFT


@shared(EMBEDDED, THREADS)
def test_a_limit_of_a_plain_function_in_a_thread_is_a_warning_once(stack: Stack) -> None:
    names = [stack.name() for _ in range(2)]
    jobs = [stack.jobs.submit("limits.soft_plain", name=name) for name in names]
    for job in jobs:
        stack.journal.wait_start(job)
    stays(lambda: all(stack.jobs.status(job) == "running" for job in jobs), "running", 1.5)
    stack.journal.release(*names)
    for job in jobs:
        stack.jobs.wait(job, "completed")
    warned = [line for line in log_of(stack).splitlines() if "limits.soft_plain has a time limit" in line]
    assert len(warned) == 1, warned
    assert "--pool prefork" in warned[0]


@shared(EMBEDDED, PREFORK, THREADS)
def test_a_cancel_and_a_limit_at_the_same_moment_have_one_winner(stack: Stack) -> None:
    """The answer to the cancel says which: canceled when it was taken, failed when it was too late."""
    jobs = [stack.jobs.submit("limits.soft", name=stack.name()) for _ in range(stack.slots)]
    answers: dict[str, int] = {}
    for job in jobs:
        stack.journal.wait_start(job)

    def raced() -> bool:
        for job in jobs:
            if job not in answers and datetime.now().astimezone().timestamp() >= moments[job]:
                answers[job] = stack.jobs.cancel(job, 202, 409).status_code
        return len(answers) == len(jobs)

    started = {job: stack.journal.starts(job)[0].at for job in jobs}
    moments = {job: started[job] + 1.0 + (number - 1) * 0.01 for number, job in enumerate(jobs)}
    wait_until(raced, "all were canceled")
    for job in jobs:
        assert stack.jobs.wait(job)["status"] == {202: "canceled", 409: "failed"}[answers[job]]
    stack.every_slot_works()
