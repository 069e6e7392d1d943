"""Jobs for the acceptance tests, written into a service's folder as the module `sample`.

Each tells in a journal when its code starts and ends; those that hold end when a test says so (`release-<name>`).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from ulid import ULID

from celery_jobs.tasks import JobTask, current_job, job

FOLDER = Path(os.environ["SAMPLE_FOLDER"])
LOOK_SECONDS = 0.01


def tell(event: str, **more: object) -> None:
    """One line, written at once and whole, also when several processes write."""
    line = {"job": str(current_job.id), "event": event, "at": time.time(), "pid": os.getpid(), **more}
    file = os.open(FOLDER / "journal", os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def told(mark: str = "") -> Generator[None]:
    tell("start", mark=mark)
    try:
        yield
    except BaseException as error:
        tell("end", mark=mark, how=type(error).__name__)
        raise
    tell("end", mark=mark, how="return")


def released(name: str) -> bool:
    return (FOLDER / f"release-{name}").exists()


@job
def noop() -> None:
    """Nothing at all."""


@job
def note(mark: str = "") -> str:
    """Only tells that it ran."""
    with told(mark):
        return mark


@job
def nap(seconds: Annotated[float, Field(ge=0, le=60)], mark: str = "") -> str:
    with told(mark):
        time.sleep(seconds)
    return mark


@job
async def nap_async(seconds: Annotated[float, Field(ge=0, le=60)], mark: str = "") -> str:
    with told(mark):
        await asyncio.sleep(seconds)
    return mark


@job
def hold(name: str, ending: Literal["return", "raise"] = "return") -> str:
    """A plain function: nobody can interrupt it."""
    with told(name):
        while not released(name):
            time.sleep(LOOK_SECONDS)
        if ending == "raise":
            raise ValueError("told to raise")
    return name


@job
async def hold_async(name: str) -> str:
    """A coroutine: interrupted at its next await."""
    with told(name):
        while not released(name):  # noqa: ASYNC110  # another process releases it
            await asyncio.sleep(LOOK_SECONDS)
    return name


@job
async def swallow(name: str) -> str:
    """A coroutine that swallows the cancel and goes on until it is released."""
    with told(name):
        while not released(name):
            try:
                await asyncio.sleep(LOOK_SECONDS)
            except asyncio.CancelledError:
                tell("swallowed")
    return name


@job
def checkpointing(name: str) -> str:
    """A plain function that stops at a checkpoint."""
    with told(name):
        while not released(name):
            current_job.checkpoint()
            time.sleep(LOOK_SECONDS)
    return name


@job
def looking(name: str) -> str:
    """A plain function that looks whether somebody wants it to stop, and returns."""
    with told(name):
        while not released(name) and not current_job.cancel_requested:
            time.sleep(LOOK_SECONDS)
    return name


@job
def raising(text: str = "told to raise") -> None:
    with told():
        raise ValueError(text)


@job(bind=True, max_retries=2)
def retrying(self: JobTask, name: str, failures: int = 1, countdown: float = 0.2) -> str:
    """Asks for a retry `failures` times, then returns."""
    with told(name):
        if self.request.retries < failures:
            raise self.retry(countdown=countdown, exc=ValueError("try again"))
    return name


@job(retry_on_worker_lost=True)
def survivor(name: str) -> str:
    """A plain function that may run again when its worker was lost."""
    with told(name):
        while not released(name):
            time.sleep(LOOK_SECONDS)
    return name


@job(retry_on_worker_lost=True, max_attempts=2)
def poison(name: str) -> str:
    """Ends its own process each time: a lost child."""
    with told(name):
        os.kill(os.getpid(), 9)
    return name


@job
def typed(count: int, ratio: float = 1.0, flag: bool = False, words: list[str] | None = None) -> dict[str, object]:
    return {"count": count, "ratio": ratio, "flag": flag, "words": words}


@job
def stepping(name: str, steps: int = 3) -> str:
    """Says how far it is, then holds."""
    with told(name):
        for step in range(1, steps + 1):
            current_job.progress(step, steps, f"step {step}")
            while not released(f"{name}-{step}"):
                time.sleep(LOOK_SECONDS)
    return name


@job
def artifact() -> ULID:
    """A job that made something which has an id."""
    return ULID.from_str("01ARZ3NDEKTSV4RRFFQ69G5FAV")


@job(queue="other")
def elsewhere(name: str) -> str:
    """Like `hold`, on a queue of its own."""
    with told(name):
        while not released(name):
            time.sleep(LOOK_SECONDS)
    return name


@job(priority=7)
def important(mark: str = "") -> str:
    with told(mark):
        return mark
