"""Everything at once: submits, cancels, deletes and limits while workers and children are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.acceptance.kinds import own
from tests.support.jobs import TERMINAL, Jobs
from tests.support.journal import Line, overlap
from tests.support.stack import PREFORK, THREADS, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

LIMIT = 3
JOBS = 160


@own(PREFORK, THREADS)
def test_a_storm_leaves_every_record_true_and_every_slot_free(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_MAX_CONCURRENCY=str(LIMIT), JOBS_WORKER_TIMEOUT_SECONDS="4").start()
    stack.worker()
    stack.api()
    with ThreadPoolExecutor(6) as pool:
        storm = pool.map(lambda number: one_job(stack, number), range(JOBS))
        killed = kill_some(stack)
        told = dict(storm)
    stack.jobs.wait_idle(timeout=60)
    for job, deleted in told.items():
        check(stack, job, deleted)
    assert overlap(with_ends_of_killed(stack.journal.lines(), killed)) <= LIMIT
    name = stack.name()
    after = [stack.jobs.submit("hold", name=name) for _ in range(LIMIT)]
    for job in after:
        stack.journal.wait_start(job)
    stack.journal.release(name)
    for job in after:
        stack.jobs.wait(job, "completed")


def one_job(stack: Stack, number: int) -> tuple[str, bool]:
    """Submit one, and perhaps cancel or delete it; its id, and whether it was deleted."""
    dice = random.Random(number)
    jobs = Jobs(stack.apis[number % 2].client)
    task = dice.choice(["nap", "nap", "nap_async", "retrying"])
    options = {"name": "x", "countdown": 0} if task == "retrying" else {"seconds": dice.uniform(0.01, 0.1)}
    job = jobs.submit(task, **options)
    what = dice.random()
    time.sleep(dice.uniform(0, 0.2))
    if what < 0.2:
        jobs.cancel(job, 202, 409)
    elif what < 0.35:
        jobs.delete(job)
    return job, 0.2 <= what < 0.35


def kill_some(stack: Stack) -> dict[int, float]:
    """A worker with all its processes, then a child of another; when each process was ended."""
    killed: dict[int, float] = {}
    wait_until(lambda: len(stack.journal.starts()) >= JOBS // 5, "the storm is on", 60)
    first, second = stack.workers[:2]
    pids = [first.pid, *(child.pid for child in first.children())]
    first.kill9()
    killed.update(dict.fromkeys(pids, time.time()))
    stack.worker()
    if stack.kind.pool == "prefork":
        victim = second.children()[0].pid
        os.kill(victim, signal.SIGKILL)
        killed[victim] = time.time()
    return killed


def with_ends_of_killed(lines: list[Line], killed: dict[int, float]) -> list[Line]:
    """The lines, and an end for each run that was killed in its code."""
    running: dict[tuple[str, int], Line] = {}
    for line in lines:
        if line.starts:
            running[line.job, line.pid] = line
        elif line.event == "end":
            running.pop((line.job, line.pid), None)
    assert {line.pid for line in running.values()} <= set(killed), "a run has no end"
    return [*lines, *(replace(line, event="end", at=killed[line.pid]) for line in running.values())]


def check(stack: Stack, job: str, deleted: bool) -> None:
    """What the record says is what its code did."""
    starts = len(stack.journal.starts(job))
    if deleted:
        assert stack.jobs.client.get(f"/api/v1/jobs/{job}").status_code == 404
        assert starts <= 2
        return
    record = stack.jobs.record(job)
    assert record["status"] in TERMINAL, record
    lost = (record["error"] or "").startswith("WorkerLost: ")
    assert (record["status"] == "failed") == lost, record
    # a run may be killed, or its coroutine canceled, after its start was recorded and before its code told of it
    possible = {record["attempt"], record["attempt"] - 1} if record["status"] != "completed" else {record["attempt"]}
    assert starts in possible, record
    if record["status"] == "completed":
        assert stack.journal.ends(job)[-1].how == "return"
