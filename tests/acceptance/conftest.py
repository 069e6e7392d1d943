"""Deployments for tests: one that many tests share, or one of the test's own to break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.jobs import Jobs
from tests.support.postgres import PostgresServer
from tests.support.processes import Process, Processes
from tests.support.redis import RedisServer
from tests.support.remote_host import Host
from tests.support.service import Service
from tests.support.stack import KINDS, MODULES, PREFORK, SQLITE, Kind, Stack, migrate

SHARED_SLOTS = 4


def environment(kind: Kind, folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """What makes a service one of this kind; servers start only where they are needed."""
    env = {"JOBS_IMPORTS": ",".join(MODULES), "SAMPLE_FOLDER": str(folder), "JOBS_DATA_DIR": str(folder / "data")}
    if not kind.embedded:
        env["CELERY_BROKER_URL"] = request.getfixturevalue("redis_server").new_database()
        if kind.database == "postgresql":
            env["DATABASE_URL"] = request.getfixturevalue("postgres_server").new_database(migrate)
        else:
            env["DATABASE_URL"] = f"sqlite:///{folder / 'jobs.db'}"
    return env


class Shared:
    """The running deployment of each kind, started when a test first asks for it."""

    def __init__(self, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> None:
        self._request, self._factory = request, factory
        self._ledger = Processes(factory.mktemp("logs"))
        self._running: dict[Kind, Stack] = {}

    def of(self, kind: Kind) -> Stack:
        stack = self._running.get(kind)
        if stack is None or not usable(stack):
            folder = self._factory.mktemp(kind.name)
            service = Service(self._ledger, folder, environment(kind, folder, self._request))
            stack = self._running[kind] = Stack(kind, service, SHARED_SLOTS).start()
        return stack

    def close(self) -> None:
        with redirect_stdout(StringIO()):
            self._ledger.end_all()
        for stack in self._running.values():
            stack.service.close()


@pytest.fixture(scope="session")
def shared_embedded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with closing(Shared(request, tmp_path_factory)) as shared:
        yield shared


@pytest.fixture(scope="session")
def shared_served(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    redis_server: RedisServer,
    postgres_server: PostgresServer,
) -> Iterator[Shared]:
    """Asks for the servers by name, so that they end after what uses them."""
    with closing(Shared(request, tmp_path_factory)) as shared:
        yield shared


def usable(stack: Stack) -> bool:
    """A test may have broken it; then the next one gets another."""
    if not all(process.running for process in [stack.process, *stack.workers]):
        return False
    try:
        queue = stack.jobs.queue()
    except (AssertionError, httpx.HTTPError):
        return False
    idle = queue["running"] + queue["canceling"] + queue["pending"] == 0
    return idle and queue["max_concurrency"] is None and not queue["paused"]


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.xdist_group(kind.name)) for kind in KINDS], ids=str)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A running deployment that others use too: leave it as it was, and end what you started."""
    shared: Shared = request.getfixturevalue("shared_embedded" if request.param.embedded else "shared_served")
    stack = shared.of(request.param)
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
    """What the test left is canceled and its limit lifted, so that the next one finds free slots."""
    jobs.change_queue(max_concurrency=None, paused=False)
    for status in ("pending", "running"):
        for record in jobs.list(status_filter=status):
            jobs.cancel(record["id"], 202, 409)
    jobs.wait_idle(timeout=10)


@pytest.fixture
def new_stack(new_service: Callable[..., Service], request: pytest.FixtureRequest) -> Callable[..., Stack]:
    """Makes a deployment of the test's own: `new_stack(PREFORK, slots=1, JOBS_WORKER_TIMEOUT_SECONDS="3")`."""

    def make(kind: Kind, slots: int = 2, **env: Any) -> Stack:
        service = new_service()
        service.env.update({**environment(kind, service.folder, request), **env})
        return Stack(kind, service, slots)

    return make


def starting(request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stack]]:
    """What starts deployments, and ends them with the fixture that asks for it."""
    ledger = Processes(factory.mktemp("logs"))
    started: list[Stack] = []

    def start(kind: Kind, slots: int = SHARED_SLOTS, *, worker: bool = True, apis: int = 1, **env: str) -> Stack:
        folder = factory.mktemp(kind.name)
        service = Service(ledger, folder, {**environment(kind, folder, request), **env})
        started.append(Stack(kind, service, slots))
        started[-1].start(worker=worker)
        for _ in range(apis - 1):
            started[-1].api()
        return started[-1]

    yield start
    with redirect_stdout(StringIO()):
        ledger.end_all()
    for stack in started:
        stack.service.close()


@pytest.fixture(scope="module")
def start_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Stack]]:
    """Starts a deployment that the tests of one file share, with as many API processes as they need."""
    yield from starting(request, tmp_path_factory)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(PREFORK, marks=pytest.mark.xdist_group("twins")),
        pytest.param(SQLITE, marks=(pytest.mark.slow, pytest.mark.xdist_group("twins"))),
    ],
    ids=str,
)
def twins(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    redis_server: RedisServer,
    postgres_server: PostgresServer,
) -> Iterator[Stack]:
    """Two API processes on one database and no worker, for all tests that leave them as they were."""
    for start in starting(request, tmp_path_factory):
        yield start(request.param, worker=False, apis=2)


@pytest.fixture(scope="module")
def new_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Host]]:
    """Starts an application that is not ours (tests/support/remote_host.py), which the tests of one file share."""
    ledger = Processes(tmp_path_factory.mktemp("logs"))
    made: list[Host] = []

    def make(**options: Any) -> Host:
        made.append(Host(ledger, tmp_path_factory.mktemp("host"), **options))
        return made[-1]

    yield make
    for host in made:
        host.http.close()
    ledger.end_all()
