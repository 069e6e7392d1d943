"""Coroutine tasks on the process's loop: interrupted at their next await, and one's end is not the loop's."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import NoReturn

import pytest

from celery_jobs.tasks.coroutines import RunningCoroutine


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
