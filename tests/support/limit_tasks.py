"""Jobs with time limits, written into a service's folder as the module `limits`."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from celery.exceptions import SoftTimeLimitExceeded
from process import Held  # pyright: ignore[reportMissingImports]
from sample import LOOK_SECONDS, released, tell, told  # pyright: ignore[reportMissingImports]

from celery_jobs.tasks import current_job, job


async def until_released(name: str) -> None:
    while not released(name):  # noqa: ASYNC110  # another process releases it
        await asyncio.sleep(LOOK_SECONDS)


@job(soft_time_limit=1, time_limit=30)
async def soft(name: str) -> str:
    """Does not know of its soft limit."""
    with told():
        await until_released(name)
    return name


@job(soft_time_limit=0.5)
def held(name: Held) -> str:
    """Its soft limit passes before its code begins."""
    with told():
        return name


@job(soft_time_limit=1, time_limit=30)
def soft_plain(name: str) -> str:
    with told():
        while not released(name):
            time.sleep(LOOK_SECONDS)
    return name


@job(soft_time_limit=1, time_limit=30)
async def caught(name: str, inside: Literal["sleep", "group", "timeout", "gather", "child"]) -> str:
    """Catches its soft limit, cleans up with an await, and goes on with other work that may time out."""
    child = asyncio.create_task(_child(name))
    told_of = ""
    with told():
        try:
            match inside:
                case "sleep":
                    await until_released(name)
                case "group":
                    async with asyncio.TaskGroup() as group:
                        group.create_task(_child(name))
                case "timeout":
                    async with asyncio.timeout(60):
                        await asyncio.wait_for(_child(name), 60)
                case "gather":
                    await asyncio.gather(_child(name), until_released(name))
                case "child":
                    await child
        except SoftTimeLimitExceeded as error:
            told_of = str(error.args[0])
        child.cancel()
        await asyncio.sleep(0.05)
        try:
            async with asyncio.timeout(0.05):
                await asyncio.sleep(60)
        except TimeoutError:
            tell("timed out")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_failing())
                await asyncio.sleep(60)
        except* ValueError:
            tell("group failed")
    return told_of


async def _failing() -> None:
    raise ValueError("on its own")


async def _child(name: str) -> None:
    try:
        await until_released(name)
    except BaseException as error:
        tell("child", how=type(error).__name__)
        raise


@job(soft_time_limit=0.5, time_limit=1)
async def hard(name: str, stubborn: bool) -> str:
    """Swallows its soft limit, and, where it is stubborn, whatever else ends a coroutine."""
    with told():
        try:
            while not released(name):
                try:
                    await asyncio.sleep(LOOK_SECONDS)
                except SoftTimeLimitExceeded:
                    tell("soft")
                except BaseException as error:
                    tell("swallowed", how=type(error).__name__)
                    if not stubborn:
                        raise
                else:
                    tell("alive")
        finally:
            tell("cleaned up", mark=current_job.id)
    return name


@job(soft_time_limit=1, time_limit=30, autoretry_for=(SoftTimeLimitExceeded,), max_retries=1, default_retry_delay=0)
async def again(name: str) -> str:
    with told():
        await until_released(name)
    return name


@job(autoretry_for=(Exception,), time_limit=0.5, max_retries=1, default_retry_delay=0)
async def hard_never_again(name: str) -> str:
    with told():
        await until_released(name)
    return name


@job
async def limitless(name: str) -> str:
    with told():
        await until_released(name)
    return name


@job
def limitless_plain(name: str) -> str:
    with told():
        while not released(name):
            time.sleep(LOOK_SECONDS)
    return name


@job
def send(name: str, task: Literal["limitless", "soft"], soft: float | None = None, hard: float | None = None) -> str:
    """Sends one of these past the service, with limits of the message's own; its task id."""
    target = {"limitless": limitless, "soft": globals()["soft"]}[task]
    return target.apply_async((name,), soft_time_limit=soft, time_limit=hard).id
