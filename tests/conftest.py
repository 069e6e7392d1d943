"""Private servers for a run of the tests, real processes for a test, and a look at what was left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.postgres import PostgresServer
from tests.support.processes import Processes, left_behind, signal_all
from tests.support.redis import RedisServer
from tests.support.service import Service

settings.register_profile("tests", deadline=None)  # a busy machine is no counterexample
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Set up before every other fixture, so torn down after them: no process may live on."""
    yield
    deadline = time.monotonic() + 5  # for what is ending just now
    while (left := left_behind()) and time.monotonic() < deadline:
        time.sleep(0.05)
    told = [f"{process.pid} {process.name()}" for process in left]
    signal_all(left, signal.SIGKILL)
    assert not told, f"the tests left processes behind (now killed): {told}"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Shared by the tests of a run: take `new_database()`, and do not stop it (see `own_redis`)."""
    with RedisServer().serving() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Shared by the tests of a run: take `new_database()`, and do not stop it (see `own_postgres`)."""
    with PostgresServer().serving() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[Callable[..., RedisServer]]:
    """Makes servers that the test may stop, freeze and restart: `own_redis(persistent=True)`."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(RedisServer(**options).serving())


@pytest.fixture
def own_postgres() -> Iterator[Callable[[], PostgresServer]]:
    """Makes servers that the test may stop, freeze and restart."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(PostgresServer().serving())


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts processes; they are ended with the test, and their logs are shown when it failed."""
    ledger = Processes(tmp_path / "logs")
    try:
        yield ledger
    finally:
        ledger.end_all()


@pytest.fixture
def new_service(processes: Processes, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Makes a service from environment variables: `new_service(DATABASE_URL=…, JOBS_MAX_CONCURRENCY="2")`."""
    made: list[Service] = []

    def make(**env: str) -> Service:
        folder = tmp_path / f"service-{len(made)}"
        folder.mkdir()
        made.append(Service(processes, folder, env))
        return made[-1]

    yield make
    for service in made:
        service.close()
