"""A rolling deployment: old and new processes side by side, migrations applied meanwhile; nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg
import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import Jobs
from tests.support.stack import MODULES, PREFORK, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]

T = 4.0
NOTICED_SECONDS = T * 1.1 + 8.0

# what a later version may do to the tables while this one runs: it only adds
NEXT_MIGRATION: tuple[LiteralString, ...] = (
    "ALTER TABLE jobs ADD COLUMN of_the_next_version text",
    "ALTER TABLE workers ADD COLUMN of_the_next_version integer NOT NULL DEFAULT 0",
    "CREATE INDEX jobs_of_the_next_version ON jobs (of_the_next_version, seq)",
    "UPDATE celery_jobs_version SET version_num = '9999'",
)
NEW_MODULE = """
    from celery_jobs.tasks import job
    from sample import told

    @job
    def new_task() -> str:
        with told():
            return "new"
"""


@dataclass
class Load:
    """What was submitted all the time, and what streams told of it."""

    jobs: list[str] = field(default_factory=list)
    told: dict[str, list[str | None]] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def submit(self, jobs: Jobs) -> None:
        while not self.ended.is_set():
            self.jobs.append(jobs.submit("nap", seconds=0.05))
            time.sleep(0.05)  # the rate

    def follow(self, jobs: Jobs, api: Callable[[], Jobs]) -> None:
        seen = 0
        while not (self.ended.is_set() and seen == len(self.jobs)):
            if seen == len(self.jobs):
                time.sleep(0.02)
                continue
            job = self.jobs[seen]
            seen += 1
            with api().stream(job) as stream:
                self.told[job] = [event.status for event in stream.rest(60)]


@contextmanager
def load(stack: Stack) -> Generator[Load]:
    """Jobs all the time, each followed by a stream; when it ends, every one has run once and its stream said so."""
    running = Load()
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(running.submit, stack.jobs), pool.submit(running.follow, stack.jobs, lambda: stack.jobs)]
        try:
            yield running
        finally:
            running.ended.set()
        for task in tasks:
            task.result()
    for job in running.jobs:
        record = stack.jobs.wait(job, "completed", timeout=30)
        assert record["attempt"] == 1, record
        assert len(stack.journal.starts(job)) == 1
        assert running.told[job][-1] == "completed"
        assert running.told[job].count("completed") == 1


def some_more(running: Load, number: int = 15) -> None:
    """The load has gone on."""
    wanted = len(running.jobs) + number
    wait_until(lambda: len(running.jobs) >= wanted, "more jobs were submitted")


@own(PREFORK)
def test_workers_that_are_replaced_under_load_lose_nothing(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2, JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}").start()
    with load(stack) as running:
        for _ in range(2):
            some_more(running)
            old, _new = stack.workers[-1], stack.worker()
            old.terminate()
            assert old.wait(30) == 0
        some_more(running)


@pytest.mark.slow
@own(PREFORK)
def test_a_migration_that_adds_is_applied_under_load(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start()
    with load(stack) as running:
        some_more(running)
        with psycopg.connect(stack.service.env["DATABASE_URL"]) as connection:
            for statement in NEXT_MIGRATION:
                connection.execute(statement)
        some_more(running)
        stack.worker()  # of this version, beside the newer database
        some_more(running)
        assert "up to date" in stack.service.run("migrate").stdout


@pytest.mark.slow
@own(PREFORK)
def test_a_task_that_only_new_workers_know_runs_there(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=1, JOBS_WORKER_TIMEOUT_SECONDS=f"{T:g}")
    stack.service.module("newer", NEW_MODULE)
    old = stack.service.env["JOBS_IMPORTS"] = ",".join(MODULES)
    stack.service.env["JOBS_IMPORTS"] += ",newer"
    stack.start(worker=False).worker(JOBS_IMPORTS=old)
    alone = stack.jobs.submit("newer.new_task")
    record = stack.jobs.wait(alone, "failed", timeout=NOTICED_SECONDS)
    assert record["error"] == "NotRegistered: no live worker of queue 'jobs' knows the task 'newer.new_task'"
    assert (record["attempt"], record["started_at"]) == (0, None)
    stack.worker()
    jobs = [stack.jobs.submit("newer.new_task") for _ in range(6)]
    for job in jobs:
        assert stack.jobs.wait(job, "completed", timeout=60)["attempt"] == 1
        assert len(stack.journal.starts(job)) == 1
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
