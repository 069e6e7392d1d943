"""What a storm blows over: the processes and servers of a deployment, each with a way to come back."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Process, Processes
from tests.support.redis import RedisServer
from tests.support.service import WORKER_READY, HttpProcess, Service
from tests.support.stack import migrate

SUBJECTS = Path(__file__).with_name("subjects")
KINDS = ("redis-postgresql", "redis-sqlite", "embedded", "minimal")
LIMIT = 6


class Unit:
    """One process that is started again when it ended, as a supervisor does; who hurts it holds `lock`."""

    def __init__(self, name: str, start: Callable[[], Process], *, forks: bool = False) -> None:
        self.name = name
        self.forks = forks
        self.lock = threading.Lock()
        self._start = start
        self.process = start()

    def start(self) -> None:
        """Again, with the same name and port."""
        self.process = self._start()


@dataclass
class Deployment:
    """A running service."""

    kind: str
    folder: Path
    apis: list[Unit] = field(default_factory=list[Unit])
    workers: list[Unit] = field(default_factory=list[Unit])
    urls: list[str] = field(default_factory=list[str])
    redis: RedisServer | None = None
    postgres: PostgresServer | None = None
    sqlite: Path | None = None
    servers: threading.Lock = field(default_factory=threading.Lock)  # one broken server at a time

    @property
    def embedded(self) -> bool:
        return self.kind == "embedded"

    @property
    def ours(self) -> bool:
        return self.kind != "minimal"

    @property
    def units(self) -> list[Unit]:
        return [*self.apis, *self.workers]


@contextmanager
def deployed(kind: str, folder: Path, timeout_seconds: float) -> Generator[Deployment]:
    """A deployment of this kind that answers; ended with everything that it started."""
    with ExitStack() as stack:
        ledger = Processes(folder / "logs")
        here = Deployment(kind, folder)
        env = {"STORM_FOLDER": str(folder)}
        if kind != "embedded":
            here.redis = stack.enter_context(RedisServer(persistent=True).serving())
            env["CELERY_BROKER_URL"] = here.redis.url(1)
        if kind == "redis-postgresql":
            here.postgres = stack.enter_context(PostgresServer().serving())
            env["DATABASE_URL"] = here.postgres.new_database(migrate)
        elif kind != "minimal":
            here.sqlite = folder / "data" / "jobs.db"
            env["DATABASE_URL"] = f"sqlite:///{here.sqlite}"
        stack.callback(_end, ledger)
        service = Service(ledger, folder, {**env, **_settings(folder, timeout_seconds)} if here.ours else env)
        stack.callback(service.close)
        for name in ("telling", "storm" if here.ours else "minimal"):
            shutil.copy(SUBJECTS / f"{name}.py", folder / f"{name}.py")
        _start_ours(here, service) if here.ours else _start_minimal(here, service, ledger)
        yield here


def _settings(folder: Path, timeout_seconds: float) -> dict[str, str]:
    return {
        "JOBS_IMPORTS": "storm",
        "JOBS_DATA_DIR": str(folder / "data"),
        "JOBS_MAX_CONCURRENCY": str(LIMIT),
        "JOBS_WORKER_TIMEOUT_SECONDS": str(timeout_seconds),
    }


def _start_ours(here: Deployment, service: Service) -> None:
    if here.sqlite is not None and not here.embedded:
        migrate(service.env["DATABASE_URL"])
    command = ["up", "--concurrency", "8"] if here.embedded else ["api"]
    for number in range(1 if here.embedded else 2):
        _serve(here, f"api-{number}", lambda port: service.start(*command, "--port", str(port)))
    for number, pool in enumerate(() if here.embedded else ("prefork", "threads")):
        args = ("worker", "--pool", pool, "--concurrency", "4")
        unit = Unit(f"worker-{number}", lambda args=args: service.start(*args), forks=pool == "prefork")
        here.workers.append(unit)
    for unit in here.workers:
        unit.process.wait_for_log(WORKER_READY, 60)


def _start_minimal(here: Deployment, service: Service, ledger: Processes) -> None:
    programs = Path(sys.executable).parent

    def start(*args: str) -> Process:
        command = [programs / args[0], *args[1:]]
        return ledger.start(command, name=args[0], env=service.env, cwd=here.folder)

    for number in range(2):
        _serve(here, f"api-{number}", lambda port: start("uvicorn", "minimal:app", "--port", str(port)))
    for number in range(2):
        args = ("celery", "-A", "minimal:celery", "worker", "-l", "INFO", "-c", str(LIMIT // 2), "-n", f"w{number}@%h")
        here.workers.append(Unit(f"worker-{number}", lambda args=args: start(*args), forks=True))
    for unit in here.workers:
        unit.process.wait_for_log(" ready", 60)


def _serve(here: Deployment, name: str, start: Callable[[int], Process]) -> None:
    port = free_port()
    unit = Unit(name, lambda: start(port))
    served = HttpProcess(unit.process, f"http://127.0.0.1:{port}")
    served.wait_ready()
    served.client.close()
    here.apis.append(unit)
    here.urls.append(served.url)


def _end(ledger: Processes) -> None:
    """Killed; their logs stay in the folder."""
    for process in reversed(ledger.started):
        process.end(0)
    ledger.started.clear()


def log_files(here: Deployment) -> Iterator[Path]:
    """What the processes wrote."""
    yield from sorted((here.folder / "logs").glob("*.log"))
