"""One clock decides, the database's: a worker whose own is wrong loses no job and writes no wrong time (case C17)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.acceptance.kinds import own
from tests.support.stack import PREFORK, Kind, Stack
from tests.support.waiting import stays

NewStack = Callable[..., Stack]

T = 3.0
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@pytest.mark.slow
@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed")
@own(PREFORK)
@pytest.mark.parametrize("offset", ["-10m", "+10m"])
def test_a_worker_whose_clock_is_ten_minutes_off_is_like_any_other(
    new_stack: NewStack, kind: Kind, offset: str
) -> None:
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start(worker=False)
    preload = str(FAKETIME[0])
    stack.service.env |= {"LD_PRELOAD": preload, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    stack.worker()
    for name in ("LD_PRELOAD", "FAKETIME"):
        del stack.service.env[name]
    name = stack.name()
    job = stack.jobs.submit("hold_async", name=name)  # libfaketime breaks time.sleep
    begun = stack.journal.wait_start(job)
    assert abs(begun.at - datetime.now(UTC).timestamp()) > 500  # its clock is wrong indeed
    stack.worker()
    stays(lambda: stack.jobs.status(job) == "running", "running", 3 * T)
    stack.journal.release(name)
    record = stack.jobs.wait(job, "completed")
    assert record["attempt"] == 1
    times = [datetime.fromisoformat(record[f"{moment}_at"]) for moment in ("submitted", "started", "finished")]
    assert times == sorted(times)
    assert abs((times[-1] - datetime.now(UTC)).total_seconds()) < 5
    retried = stack.jobs.submit("retrying", name=stack.name(), countdown=0.5)
    assert stack.jobs.wait(retried, "completed")["attempt"] == 2
