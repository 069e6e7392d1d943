"""PostgreSQL fails in every way at every moment of a job's life: nothing is lost, nothing is false (contract, 2, 3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from tests.acceptance.kinds import own
from tests.support.moments import Moments, worker_rows
from tests.support.postgres import PostgresServer
from tests.support.stack import PREFORK, THREADS, Kind, Stack, migrate
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]
NewPostgres = Callable[[], PostgresServer]

T = 3.0
SLOTS = 10  # for a job of each moment, and more


@contextmanager
def paused(server: PostgresServer, _url: str) -> Generator[None]:
    server.pause()
    yield
    server.resume()


@contextmanager
def stopped(server: PostgresServer, _url: str) -> Generator[None]:
    server.stop()
    yield
    server.start()


@contextmanager
def crashed(server: PostgresServer, _url: str) -> Generator[None]:
    server.stop_immediately()
    yield
    server.start()


@contextmanager
def jobs_locked(server: PostgresServer, url: str) -> Generator[None]:
    with server.locked("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE", url):
        yield


@contextmanager
def all_locked(server: PostgresServer, url: str) -> Generator[None]:
    with server.locked("LOCK TABLE jobs, workers, queues IN ACCESS EXCLUSIVE MODE", url):
        yield


@contextmanager
def read_only(server: PostgresServer, _url: str) -> Generator[None]:
    with server.read_only():
        yield


FAULTS = {fault.__name__: fault for fault in (paused, stopped, crashed, jobs_locked, all_locked, read_only)}


def survive(stack: Stack, server: PostgresServer, fault: str, seconds: float) -> None:
    """One outage of at least so many seconds with jobs at every moment."""
    url = stack.database_url
    workers = worker_rows(url)
    moments = Moments(stack)
    with FAULTS[fault](server, url):
        began = time.monotonic()
        moments.go_on()
        moments.refused(reads=fault != "read_only" and fault != "jobs_locked")
        time.sleep(max(0.0, began + seconds - time.monotonic()))  # the outage itself, not a wait for anything
    moments.judge()
    assert worker_rows(url) == workers


def everybody_is_frozen(stack: Stack, seconds: float) -> None:
    """As when the machine sleeps; who wakes first finds that everybody else said nothing for long."""
    (worker,) = stack.workers
    worker.stop()
    stack.process.stop()
    time.sleep(seconds)  # the pause itself
    stack.process.cont()
    wait_until(lambda: stack.jobs.client.get("/readyz").status_code == 200, "the API answers")
    time.sleep(2 * T / 10)  # it sweeps, and must not judge
    worker.cont()


def on_its_own_server(new_stack: NewStack, kind: Kind, server: PostgresServer, timeout: float) -> Stack:
    env = {"DATABASE_URL": server.new_database(migrate), "JOBS_WORKER_TIMEOUT_SECONDS": f"{timeout:g}"}
    return new_stack(kind, slots=SLOTS, **env).start()


@own(PREFORK)
def test_one_outage_after_the_other_loses_nothing_and_nobody_is_taken_for_dead(
    new_stack: NewStack, kind: Kind, own_postgres: NewPostgres
) -> None:
    server = own_postgres()
    stack = on_its_own_server(new_stack, kind, server, T)
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    for fault in ("paused", "crashed"):
        survive(stack, server, fault, 1.5 * T)
    everybody_is_frozen(stack, 2 * T)
    stays(lambda: stack.jobs.status(job) == "running", "running", T)
    stack.journal.release(name)
    assert stack.jobs.wait(job, "completed")["attempt"] == 1


@pytest.mark.slow
@own(PREFORK, THREADS)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_outage_longer_than_t(new_stack: NewStack, kind: Kind, own_postgres: NewPostgres, fault: str) -> None:
    server = own_postgres()
    survive(on_its_own_server(new_stack, kind, server, T), server, fault, 4 * T)


@pytest.mark.slow
@pytest.mark.timeout(900)
@own(PREFORK)
@pytest.mark.parametrize("fault", ["paused", "stopped", "all_locked"])
def test_five_minutes(new_stack: NewStack, kind: Kind, own_postgres: NewPostgres, fault: str) -> None:
    server = own_postgres()
    survive(on_its_own_server(new_stack, kind, server, 60.0), server, fault, 300.0)
