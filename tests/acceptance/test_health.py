"""Health says what is true also of a database that answers and takes nothing (contract, section 3)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

import psycopg

from tests.acceptance.kinds import own
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.waiting import wait_until


@contextmanager
def locked(stack: Stack) -> Generator[None]:
    """Another program holds what every write needs."""
    if stack.kind.database == "sqlite":
        path = stack.database_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
    else:
        with psycopg.connect(stack.database_url) as other:
            other.execute("LOCK TABLE jobs IN SHARE MODE")
            yield


@own(EMBEDDED, PREFORK)
def test_a_database_that_takes_no_writes_is_not_healthy(new_stack: Callable[..., Stack], kind: Kind) -> None:
    stack = new_stack(kind).start()
    client = stack.jobs.client
    wait_until(lambda: client.get("/health").json()["status"] == "healthy", "all is well")
    with locked(stack):
        wait_until(lambda: client.get("/health").status_code == 503, "the outage is noticed", 10)
        answer = client.get("/health")
        assert answer.json()["status"] == "unhealthy"
        checks = answer.json()["checks"]
        assert checks["database"]["state"] == "unhealthy"
        assert "takes no writes" in checks["database"]["message"]
        assert checks["workers"]["state"] == "healthy", "it is the database that keeps them from reporting"
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        assert client.get("/api/v1/jobs").status_code == 200
    wait_until(lambda: client.get("/readyz").status_code == 200, "the service is ready again")
    wait_until(lambda: client.get("/health").json()["status"] == "healthy", "all is well again")
