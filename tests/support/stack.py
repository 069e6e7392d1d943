"""The ways to deploy the service that the acceptance tests run on, with the sample jobs loaded."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

import psycopg

from tests.support.jobs import Jobs
from tests.support.journal import Journal
from tests.support.processes import Process
from tests.support.service import PROGRAM, HttpProcess, Service

# the modules of tasks that every deployment has, and where they are written
MODULES = {
    "sample": "sample_tasks.py",
    "values": "value_tasks.py",
    "failing": "error_tasks.py",
    "process": "process_tasks.py",
    "limits": "limit_tasks.py",
    "clean_ups": "clean_up_tasks.py",
    "arguments": "argument_tasks.py",
    "writing": "writing_tasks.py",
}
# written too, and loaded where JOBS_IMPORTS names them
MORE_MODULES = {"rooms": "room_tasks.py", "shop": "python_tasks.py", "hooked": "hooked_tasks.py"}


@dataclass(frozen=True)
class Kind:
    """One way to deploy it; no pool means all in one process, with nothing else beside it."""

    name: str
    database: Literal["sqlite", "postgresql"]
    pool: Literal["prefork", "threads"] | None

    @property
    def embedded(self) -> bool:
        return self.pool is None

    def __str__(self) -> str:
        return self.name


EMBEDDED = Kind("embedded", "sqlite", None)
PREFORK = Kind("redis-postgresql-prefork", "postgresql", "prefork")
THREADS = Kind("redis-postgresql-threads", "postgresql", "threads")
SQLITE = Kind("redis-sqlite-prefork", "sqlite", "prefork")
KINDS = (EMBEDDED, PREFORK, THREADS, SQLITE)


def migrate(url: str) -> None:
    """Make the tables in an empty database."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBS_")}
    done = subprocess.run(
        [PROGRAM, "migrate"],
        env={**clean, "DATABASE_URL": url},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"celery-jobs migrate: {done.stdout}{done.stderr}"


class Stack:
    """A deployment of one kind: its processes, a client of its first API process, and the journal of its jobs."""

    def __init__(self, kind: Kind, service: Service, slots: int) -> None:
        self.kind = kind
        self.service = service
        self.slots = slots
        self.workers: list[Process] = []
        self.apis: list[HttpProcess] = []
        for module, file in (MODULES | MORE_MODULES).items():
            service.module(module, Path(__file__).with_name(file).read_text(encoding="utf-8"))
        self.journal = Journal(service.folder)
        self._held: list[str] = []

    def start(self, *, worker: bool = True) -> Stack:
        """An API process and, unless a test wants it later, a worker; what is embedded is both."""
        if self.kind.database == "sqlite" and not self.kind.embedded:
            migrate(self.service.env["DATABASE_URL"])
        self.api()
        if worker and not self.kind.embedded:
            self.worker()
        return self

    def api(self) -> HttpProcess:
        """One more API process."""
        embedded = self.kind.embedded
        served = self.service.up("--concurrency", str(self.slots)) if embedded else self.service.api()
        self.apis.append(served)
        return served

    def worker(self, *args: str, concurrency: int | None = None, ready: bool = True, **env: str) -> Process:
        """One more worker."""
        pool, slots = self.kind.pool or "threads", concurrency or self.slots
        worker = self.service.worker(*args, pool=pool, concurrency=slots, ready=ready, **env)
        self.workers.append(worker)
        return worker

    @property
    def jobs(self) -> Jobs:
        """The service as a client of the first API process sees it."""
        return Jobs(self.apis[0].client)

    @property
    def process(self) -> Process:
        """The first API process."""
        return self.apis[0].process

    def name(self) -> str:
        """A fresh name under which a job holds; released at the end of the test at the latest."""
        self._held.append(uuid4().hex[:12])
        return self._held[-1]

    def release_all(self) -> None:
        self.journal.release(*self._held)
        self._held.clear()

    @property
    def database_url(self) -> str:
        """Where its record table is."""
        env = self.service.env
        return env.get("DATABASE_URL") or f"sqlite:///{env['JOBS_DATA_DIR']}/jobs.db"

    def every_slot_works(self) -> None:
        """As many jobs as there are slots run at once: none of the slots was lost."""
        held = [self.name() for _ in range(self.slots)]
        jobs = [self.jobs.submit("hold", name=name) for name in held]
        for job in jobs:
            self.journal.wait_start(job)
        self.journal.release(*held)
        for job in jobs:
            self.jobs.wait(job, "completed")

    def database_connections(self) -> int:
        """How many others use its PostgreSQL database; 0 where there is none."""
        if self.kind.database != "postgresql":
            return 0
        with psycopg.connect(self.service.env["DATABASE_URL"]) as connection:
            row = connection.execute(
                "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchone()
        return row[0] if row else 0

    def broker_database(self) -> int:
        """The number of the Redis database that carries its messages."""
        return int(self.service.env["CELERY_BROKER_URL"].rpartition("/")[2])

    def worker_of(self, job: str) -> Process:
        """The worker process whose code runs the job now."""
        pid = self.journal.starts(job)[-1].pid
        for worker in self.workers:
            if worker.running and pid in {worker.pid, *(child.pid for child in worker.children())}:
                return worker
        raise AssertionError(f"no worker has a process {pid}")
