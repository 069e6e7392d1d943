"""Jobs that end, block or outlive their process, written into a service's folder as the module `process`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from typing import Annotated, Literal

from billiard.exceptions import SoftTimeLimitExceeded
from billiard.process import current_process
from pydantic import AfterValidator
from sample import FOLDER, LOOK_SECONDS, released, told  # pyright: ignore[reportMissingImports]

from celery_jobs.tasks import JobTask, current_job, job

End = Literal["os_exit", "system_exit", "keyboard_interrupt", "memory_error", "segfault", "sigkill"]


@job
def ending(how: End) -> None:
    """Ends its own process, or tries to."""
    with told():
        match how:
            case "os_exit":
                os._exit(3)
            case "system_exit":
                sys.exit(3)
            case "keyboard_interrupt":
                raise KeyboardInterrupt
            case "memory_error":
                raise MemoryError("none left")
            case "segfault":
                ctypes.string_at(0)
            case "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)


@job(time_limit=1)
def limited(name: str, clean_up: Literal["none", "raises", "swallows"] = "none") -> None:
    """Runs over its hard limit, and does not take the signal well."""
    with told():
        while not released(name):
            try:
                time.sleep(LOOK_SECONDS)
            except SystemExit:
                if clean_up == "raises":
                    raise ValueError("while cleaning up") from None
                if clean_up == "none":
                    raise


@job(soft_time_limit=1, time_limit=30)
def soft_limited(name: str) -> str:
    """Catches its soft limit and returns."""
    with told():
        try:
            while not released(name):
                time.sleep(LOOK_SECONDS)
        except SoftTimeLimitExceeded:
            return "caught"
    return name


@job
def spinning(name: str) -> int:
    """Pure Python that never waits."""
    turns = 0
    with told(name):
        while turns % 100_000 or not released(name):
            turns += 1
    return turns


@job
def locking(seconds: float) -> None:
    """Holds the interpreter's lock, as a bad extension module does."""
    with told():
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@job
def stubborn(name: str) -> str:
    """Ignores SIGTERM."""
    with told(name):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while not released(name):
            time.sleep(LOOK_SECONDS)
    return name


@job(autoretry_for=(ConnectionError,), retry_backoff=1, retry_jitter=False, max_retries=3)
def backing_off(name: str, failures: int = 2) -> str:
    """Fails so often that Celery sends it again after 1 s, 2 s, …"""
    with told(name):
        if len(list(FOLDER.glob(f"failed-{name}-*"))) < failures:
            (FOLDER / f"failed-{name}-{time.time_ns()}").touch()
            raise ConnectionError("not there yet")
    return name


@job(bind=True, max_retries=5)
async def retrying_async(self: JobTask, name: str, countdown: float) -> str:
    """A coroutine that asks for a retry until it is released."""
    with told(name):
        await asyncio.sleep(0)
        if not released(name):
            raise self.retry(countdown=countdown)
    return name


def _held_in_a_worker(name: str) -> str:
    """Between the claim and the first line: arguments are checked once more where the code runs."""
    if current_process().name != "MainProcess":
        (FOLDER / f"arguments-{name}-{os.getpid()}").touch()
        while not released(name):
            time.sleep(LOOK_SECONDS)
    return name


Held = Annotated[str, AfterValidator(_held_in_a_worker)]


@job
def claimed(name: Held) -> str:
    with told(name):
        return name


@job(retry_on_worker_lost=True)
def claimed_safely(name: Held) -> str:
    with told(name):
        return name


@job(retry_on_worker_lost=True, max_attempts=2)
def thrice(name: str) -> str:
    """Safe to run again, twice in all."""
    with told(name):
        while not released(name) and not current_job.cancel_requested:
            time.sleep(LOOK_SECONDS)
    return name
