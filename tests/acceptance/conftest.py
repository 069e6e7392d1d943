"""Deployments for tests: one that many tests share, or one of the test's own to break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.jobs import Jobs
from tests.support.processes import Process, Processes
from tests.support.service import Service
from tests.support.stack import KINDS, Kind, Stack, migrate

SHARED_SLOTS = 4


def environment(kind: Kind, folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """What makes a service one of this kind; servers start only where they are needed."""
    env = {"JOBS_IMPORTS": "sample", "SAMPLE_FOLDER": str(folder), "JOBS_DATA_DIR": str(folder / "data")}
    if not kind.embedded:
        env["CELERY_BROKER_URL"] = request.getfixturevalue("redis_server").new_database()
        if kind.database == "postgresql":
            env["DATABASE_URL"] = request.getfixturevalue("postgres_server").new_database(migrate)
        else:
            env["DATABASE_URL"] = f"sqlite:///{folder / 'jobs.db'}"
    return env


@pytest.fixture(scope="session")
def shared_stacks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Kind], Stack]]:
    """The running deployment of each kind, started when a test first asks for it."""
    ledger = Processes(tmp_path_factory.mktemp("logs"))
    running: dict[Kind, Stack] = {}

    def shared(kind: Kind) -> Stack:
        stack = running.get(kind)
        if stack is None or not usable(stack):
            folder = tmp_path_factory.mktemp(kind.name)
            service = Service(ledger, folder, environment(kind, folder, request))
            stack = running[kind] = Stack(kind, service, SHARED_SLOTS).start()
        return stack

    yield shared
    ledger.end_all()
    for stack in running.values():
        stack.service.close()


def usable(stack: Stack) -> bool:
    """A test may have broken it; then the next one gets another."""
    if not all(process.running for process in [stack.process, *stack.workers]):
        return False
    try:
        queue = stack.jobs.queue()
    except (AssertionError, httpx.HTTPError):
        return False
    return queue["running"] + queue["canceling"] + queue["pending"] == 0 and queue["max_concurrency"] is None


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.xdist_group(kind.name)) for kind in KINDS], ids=str)
def stack(request: pytest.FixtureRequest, shared_stacks: Callable[[Kind], Stack]) -> Iterator[Stack]:
    """A running deployment that others use too: leave it as it was, and end what you started."""
    stack = shared_stacks(request.param)
    told = {process: len(process.log) for process in processes_of(stack)}
    yield stack
    stack.release_all()
    with suppress(AssertionError, httpx.HTTPError):
        end_jobs(stack.jobs)
    for process, seen in told.items():
        print(f"--- {process.name} (pid {process.pid}, exit {process.returncode})\n{process.log[seen:]}")


def processes_of(stack: Stack) -> list[Process]:
    return [*(api.process for api in stack.apis), *stack.workers]


def end_jobs(jobs: Jobs) -> None:
    """What the test left is canceled, so that the next one finds free slots."""
    for status in ("pending", "running"):
        for record in jobs.list(status_filter=status):
            jobs.cancel(record["id"], 202, 409)
    jobs.wait_idle(timeout=10)


@pytest.fixture
def new_stack(
    new_service: Callable[..., Service], request: pytest.FixtureRequest
) -> Callable[..., Stack]:
    """Makes a deployment of the test's own: `new_stack(PREFORK, slots=1, JOBS_WORKER_TIMEOUT_SECONDS="3")`."""

    def make(kind: Kind, slots: int = 2, **env: Any) -> Stack:
        service = new_service()
        service.env.update({**environment(kind, service.folder, request), **env})
        return Stack(kind, service, slots)

    return make
