"""Coroutine tasks on the process's loop: interrupted at their next await, and one's end is not the loop's."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine
from typing import Any, NoReturn

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from celery_jobs.tasks.coroutines import RunningCoroutine, loop
from celery_jobs.tasks.time_limits import TimeLimits


async def _answer() -> int:
    await asyncio.sleep(0)
    return 42


async def _exit() -> NoReturn:
    await asyncio.sleep(0)
    sys.exit(3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_coroutine_that_exits_ends_itself_and_not_the_loop() -> None:
    with pytest.raises(SystemExit):
        RunningCoroutine(_exit()).outcome()
    assert RunningCoroutine(_answer()).outcome() == 42


def test_an_interrupted_coroutine_ends_at_its_next_await() -> None:
    waits = threading.Event()

    async def wait_for_ever() -> None:
        waits.set()
        await asyncio.Event().wait()

    running = RunningCoroutine(wait_for_ever())
    assert waits.wait(10)
    running.interrupt()
    with pytest.raises(asyncio.CancelledError):
        running.outcome()


def test_one_that_swallows_the_interruption_has_ended_when_it_returns() -> None:
    waits = threading.Event()

    async def stubborn() -> str:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "went on"
        return "never"

    running = RunningCoroutine(stubborn())
    assert waits.wait(10)
    running.interrupt()
    assert running.outcome() == "went on"


def test_a_cancel_overtakes_a_soft_limit_that_the_code_has_not_seen() -> None:
    async def both() -> None:
        running[0].soft_limit()
        running[0].interrupt()
        await asyncio.Event().wait()

    running: list[RunningCoroutine] = []
    with pytest.raises(asyncio.CancelledError) as caught:
        started(both(), running).outcome()
    assert caught.type is asyncio.CancelledError


def test_a_soft_limit_that_reached_only_what_was_awaited_is_raised_after_it() -> None:
    async def swallowing() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def waiting() -> None:
        child = asyncio.create_task(swallowing())
        await asyncio.sleep(0)
        running[0].soft_limit()
        await child

    running: list[RunningCoroutine] = []
    with pytest.raises(SoftTimeLimitExceeded) as caught:
        started(waiting(), running).outcome()
    assert caught.type is SoftTimeLimitExceeded


def test_a_soft_limit_that_was_caught_leaves_no_cancel_behind() -> None:
    async def catching() -> int:
        running[0].soft_limit()
        try:
            await asyncio.Event().wait()
        except SoftTimeLimitExceeded:
            task = asyncio.current_task()
            assert task is not None
            return task.cancelling()
        return -1

    running: list[RunningCoroutine] = []
    assert started(catching(), running).outcome() == 0


def test_limits_before_and_after_the_code_are_limits_too() -> None:
    async def at_once() -> int:
        return 42

    assert RunningCoroutine(at_once(), limits=TimeLimits(soft=0.1, hard=0.2), timed=True).outcome() == 42
    never = RunningCoroutine(asyncio.sleep(60), limits=TimeLimits(hard=1e-9), timed=True)
    with pytest.raises(TimeLimitExceeded):
        never.outcome()


def started(coroutine: Coroutine[Any, Any, Any], running: list[RunningCoroutine]) -> RunningCoroutine:
    """It begins when `running` has it."""
    named = threading.Event()
    loop().call_soon_threadsafe(named.wait)
    running.append(RunningCoroutine(coroutine, limits=TimeLimits(soft=1)))
    named.set()
    return running[0]
