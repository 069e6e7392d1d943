"""Jobs with a clean-up of their own, written into a service's folder as the module `clean_ups`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from sample import FOLDER, LOOK_SECONDS, released, tell, told  # pyright: ignore[reportMissingImports]

from celery_jobs.tasks import JobTask, current_job, job


class Lock(BaseModel):
    name: str
    path: Path = Path("/tmp")


def release(lock: Lock, *, note: str) -> None:
    tell("clean-up", mark=json.dumps([lock.name, str(lock.path), note]), how=type(lock).__name__)
    current_job.progress(1, 1, "cleaned up")
    while (FOLDER / f"hold-{lock.name}").exists():
        time.sleep(LOOK_SECONDS)


async def release_async(**everything: Any) -> None:
    await asyncio.sleep(0.01)
    release(**everything)


def fail(lock: Lock, note: str) -> None:
    raise OSError(f"{lock.name} is\nnot there")


def end_process() -> None:
    raise SystemExit(3)


def without_arguments() -> None:
    tell("clean-up", mark=str(current_job.cancel_requested))


def until_released(name: str) -> None:
    while not released(name):
        time.sleep(LOOK_SECONDS)


async def until_released_async(name: str) -> None:
    while not released(name):  # noqa: ASYNC110  # another process releases it
        await asyncio.sleep(LOOK_SECONDS)


@job(on_cancel=release)
def plain(lock: Lock, note: str = "by default") -> str:
    """Never looks whether it was canceled."""
    with told():
        until_released(lock.name)
    return lock.name


@job(on_cancel=release_async)
async def coroutine(lock: Lock, note: str = "by default") -> str:
    with told():
        await until_released_async(lock.name)
    return lock.name


@job(on_cancel=release)
def checking(lock: Lock, note: str = "by default") -> None:
    with told():
        while not released(lock.name):
            current_job.checkpoint()
            time.sleep(LOOK_SECONDS)


@job(on_cancel=fail)
async def failing(lock: Lock, note: str = "by default") -> None:
    with told():
        await until_released_async(lock.name)


@job(on_cancel=end_process)
async def exiting(name: str) -> None:
    with told():
        await until_released_async(name)


@job(bind=True, on_cancel=without_arguments, max_retries=5)
def ending(self: JobTask, name: str, how: str) -> str:
    """Ends by itself, in any way."""
    with told():
        until_released(name)
        if how == "raise":
            raise ValueError("told to raise")
        if how == "retry":
            raise self.retry(countdown=0)
        if how == "die":
            os.kill(os.getpid(), 9)
    return name


@job(on_cancel=without_arguments)
def napping(seconds: float) -> None:
    with told():
        time.sleep(seconds)
