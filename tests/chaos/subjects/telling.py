"""Code of jobs that tells what it really did, in a journal of its own (see `tests.support.journal`)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(os.environ["STORM_FOLDER"])


def tell(job: str, event: str, **more: object) -> None:
    """One line, written at once and whole, also when several processes write."""
    line = {"job": job, "event": event, "at": time.time(), "pid": os.getpid(), **more}
    file = os.open(FOLDER / "journal", os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def told(job: str, mark: str) -> Generator[None]:
    """Tells when the code begins and how it ends; a process that is killed tells no end."""
    tell(job, "start", mark=mark)
    try:
        yield
    except BaseException as error:
        tell(job, "end", mark=mark, how=type(error).__name__)
        raise
    tell(job, "end", mark=mark, how="return")


def nap(job: str, mark: str, seconds: float) -> str:
    """A plain function."""
    with told(job, mark):
        time.sleep(seconds)
    return mark


async def doze(job: str, mark: str, seconds: float) -> str:
    """A coroutine."""
    with told(job, mark):
        await asyncio.sleep(seconds)
    return mark


def fail(job: str, mark: str, seconds: float) -> str:
    """Raises by itself."""
    with told(job, mark):
        time.sleep(seconds)
        raise ValueError(mark)
