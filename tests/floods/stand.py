"""Deployments for the floods, without a test around them."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.redis import RedisServer
from tests.support.service import Service
from tests.support.stack import EMBEDDED, MODULES, PREFORK, SQLITE, Kind, Stack, migrate

KINDS = {"embedded": EMBEDDED, "redis-postgresql": PREFORK, "redis-sqlite": SQLITE}
SLOTS = 4
TASKS = Path(__file__).with_name("flood_tasks.py")


def prepare(stack: Stack) -> Stack:
    """The deployment with the floods' tasks, started."""
    stack.service.module("flooding", TASKS.read_text(encoding="utf-8"))
    stack.service.env["JOBS_IMPORTS"] += ",flooding"
    return stack.start()


@contextmanager
def deployment(kind: Kind) -> Generator[Stack]:
    """One of this kind on servers of its own, until the block ends."""
    with ExitStack() as stand:
        folder = Path(stand.enter_context(tempfile.TemporaryDirectory(prefix="celery-jobs-floods-")))
        env = {"JOBS_IMPORTS": ",".join(MODULES), "SAMPLE_FOLDER": str(folder), "JOBS_DATA_DIR": str(folder / "data")}
        if not kind.embedded:
            env["CELERY_BROKER_URL"] = stand.enter_context(RedisServer().serving()).new_database()
            env["DATABASE_URL"] = f"sqlite:///{folder / 'jobs.db'}"
        if kind.database == "postgresql":
            env["DATABASE_URL"] = stand.enter_context(PostgresServer().serving()).new_database(migrate)
        processes = Processes(folder / "logs")
        stand.callback(_end, processes)
        service = Service(processes, folder, env)
        stand.callback(service.close)
        yield prepare(Stack(kind, service, SLOTS))


def _end(processes: Processes) -> None:
    with redirect_stdout(StringIO()):
        processes.end_all(5.0)
