"""Jobs that ask, say and retry, written into a service's folder as the module `writing`."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from celery.exceptions import Ignore, Reject
from sample import tell, told  # pyright: ignore[reportMissingImports]

from celery_jobs.tasks import JobTask, current_job, job


def log(mark: str, place: str) -> None:
    """A function that knows nothing of jobs but that it is called in one."""
    current_job.logger.info("%s in %s", mark, place)


@job
def logging_plain(mark: str) -> list[str]:
    log(mark, "code")
    found: list[str] = []

    def alone() -> None:
        try:
            log(mark, "a thread of its own")
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=alone)
    thread.start()
    thread.join()
    told = threading.Thread(target=contextvars.copy_context().run, args=(log, mark, "a thread that was told"))
    told.start()
    told.join()
    return found


@job
async def logging_async(mark: str) -> str:
    log(mark, "code")
    await asyncio.to_thread(log, mark, "to_thread")
    await asyncio.create_task(asyncio.to_thread(log, mark, "task"))
    return current_job.id


ODD: list[Any] = [
    "50%",
    "7",
    float("nan"),
    float("inf"),
    10**400,
    -1,
    2**70,
    True,
    b"x",
    1j,
    object(),
    Decimal("1.5"),
    [],
    {},
]


@job
def odd_progress() -> int:
    """Says what no client could read; every report is stored, and the last one is a good one."""
    for value in ODD:
        current_job.progress(value, value, value)
        time.sleep(0.15)
    current_job.progress(1.5, 3, "\x00\ud800" + "x" * 5_000)
    return len(ODD)


@job
def tight(calls: int) -> float:
    """The seconds that so many reports took."""
    began = time.perf_counter()
    for number in range(1, calls + 1):
        current_job.progress(number, calls, "tight")
    return time.perf_counter() - began


Error = Literal["ConnectionError", "ConnectionResetError", "ValueError", "Ignore", "Reject"]
ERRORS: dict[str, type[Exception]] = {
    each.__name__: each for each in (ConnectionError, ConnectionResetError, ValueError, Ignore, Reject)
}

RETRIES: dict[str, Any] = {
    "autoretry_for": (Exception,),
    "dont_autoretry_for": (ValueError, ConnectionResetError),
    "max_retries": 2,
    "retry_backoff": 2,
    "retry_backoff_max": 3,
    "retry_jitter": False,
}


@job(**RETRIES)
def auto(error: Error) -> None:
    """Tried again after 2 s, then after 3 s."""
    with told():
        raise ERRORS[error](f"told to raise {error}")


@job(**RETRIES)
async def auto_async(error: Error) -> None:
    with told():
        await asyncio.sleep(0)
        raise ERRORS[error](f"told to raise {error}")


JITTERING: dict[str, Any] = RETRIES | {"retry_jitter": True, "retry_backoff": 600, "retry_backoff_max": 500}


@job(**JITTERING)
async def jittering() -> None:
    raise ConnectionError("not there")


@job(bind=True, max_retries=1, default_retry_delay=0)
def by_hand(self: JobTask, how: str) -> str:
    with told(mark=f"{self.request.id} {self.request.retries}"):
        return asked(self, how)


@job(bind=True, max_retries=1, default_retry_delay=0)
async def by_hand_async(self: JobTask, how: str) -> str:
    with told(mark=f"{self.request.id} {self.request.retries}"):
        await asyncio.sleep(0)
        return asked(self, how)


def asked(self: JobTask, how: str) -> str:
    try:
        raise ConnectionError("the real one")
    except ConnectionError as error:
        match how:
            case "plain":
                self.retry()
            case "exc":
                raise self.retry(exc=error) from error
            case "eta":
                raise self.retry(eta=datetime.now(UTC) + timedelta(seconds=300)) from error
            case "countdown":
                raise self.retry(countdown=300) from error
            case "other":
                raise self.retry(args=("x",)) from error
            case "queue":
                raise self.retry(queue="other") from error
            case "replace":
                raise self.replace(noop.s()) from error
            case _:
                raise
    return "never"


@job
def noop() -> None: ...


@job(ignore_result=True)
def ignoring() -> int:
    return 42


@job(bind=True)
def leaving(self: JobTask, how: Error) -> None:
    tell("leaving")
    raise ERRORS[how]("for a reason")


@job
def factorial(number: int) -> int:
    """Calls itself, as a function."""
    return number * factorial(number - 1) if number > 1 else 1


@job
async def factorial_async(number: int) -> int:
    return number * await factorial_async(number - 1) if number > 1 else 1
