"""What a run stands on: private Redis and PostgreSQL on free ports, and the processes that are measured.

Everything starts inside a `with` and is ended at its end by process id, whatever happened.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from benchmarks.clients.wire import Connection, request_bytes
from benchmarks.stand import marks
from benchmarks.stand.records import Records
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Process
from tests.support.redis import RedisServer
from tests.support.waiting import wait_until

PROGRAM = Path(sys.executable).with_name("celery-jobs")
# a developer's own service must not be what is measured
_FOREIGN = ("JOBS_", "CELERY_", "DATABASE_", "BENCH_")
_GRACE_SECONDS = 8.0
REPOSITORY = Path(__file__).resolve().parents[2]


def _allow_many_files() -> None:
    """For a thousand connections; what is started inherits it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Bench:
    """The servers of a run, and a place for files; a context manager."""

    def __init__(self) -> None:
        _allow_many_files()
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-jobs-bench-")))
        # only this package: the repository's other folders would shadow a user's modules of the same names
        self._path = self.folder / "path"
        self._path.mkdir()
        (self._path / "benchmarks").symlink_to(REPOSITORY / "benchmarks")
        self._made = 0

    def __enter__(self) -> Bench:
        try:
            self.marks = marks.Marks(self.folder / "marks")
            self._stack.callback(self.marks.close)
            self.redis = self._stack.enter_context(RedisServer().serving())
            self.postgres = self._stack.enter_context(PostgresServer().serving())
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def environment(self, **env: str) -> dict[str, str]:
        """For a process that is measured."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        shared = {"PYTHONPATH": str(self._path), "PYTHONUNBUFFERED": "1", marks.ADDRESS: str(self.folder / "marks")}
        return {**clean, **shared, **env}

    def new_folder(self) -> Path:
        """An empty one for a process to run in."""
        self._made += 1
        folder = self.folder / f"run-{self._made}"
        folder.mkdir()
        return folder

    @contextmanager
    def running(self, name: str, args: Iterable[str | Path], env: dict[str, str], cwd: Path) -> Generator[Process]:
        """A process until the end of the `with`."""
        process = Process(list(args), log=cwd / f"{name}-{time.monotonic_ns()}.log", name=name, env=env, cwd=cwd)
        try:
            yield process
        finally:
            process.end(_GRACE_SECONDS)

    def migrated(self, url: str) -> None:
        """The tables, by the service's own command."""
        cwd = self.new_folder()
        env = self.environment(DATABASE_URL=url, CELERY_BROKER_URL=self.redis.url())
        with self.running("migrate", [PROGRAM, "migrate"], env, cwd) as process:
            if process.wait(60) != 0:
                raise AssertionError(process.log_tail())


class Ours:
    """The service: an API process with its database and broker; workers come and go."""

    def __init__(self, bench: Bench, records: Records, env: dict[str, str], port: int, process: Process) -> None:
        self.bench, self.records, self.env, self.port, self.process = bench, records, env, port, process

    @contextmanager
    def worker(self, pool: str, slots: int) -> Generator[Process]:
        """A worker that takes jobs, until the end of the `with`."""
        args = [PROGRAM, "worker", "--pool", pool, "--concurrency", str(slots)]
        with self.bench.running(f"worker-{pool}", args, self.env, Path(self.env["BENCH_FOLDER"])) as process:
            process.wait_for_log(" ready", 60)
            yield process

    @contextmanager
    def second(self) -> Generator[int]:
        """Another API process of the same service, until the end of the `with`: its port."""
        port = free_port()
        args = [PROGRAM, "api", "--port", str(port)]
        with self.bench.running("second", args, self.env, Path(self.env["BENCH_FOLDER"])) as process:
            await_answer(process, port, "GET", "/readyz")
            yield port

    def call(self, method: str, path: str, body: str = "{}") -> bytes:
        """One call that must succeed; the body of its answer."""
        connection = Connection(self.port)  # a kept one is closed by the server after 5 s without a request
        try:
            status, answer = connection.send(request_bytes(self.port, path, body, method))
        finally:
            connection.close()
        if status >= 300:
            raise AssertionError(f"{method} {path} was answered {status}: {answer.decode()}")
        return answer

    def pause(self, paused: bool = True) -> None:
        """Stop, or let, jobs start."""
        self.call("PATCH", "/api/v1/queues/jobs", f'{{"paused": {str(paused).lower()}}}')

    def clear(self) -> None:
        """Pause, wait until nothing runs, and forget every job, so that the next measurement starts from nothing."""
        self.pause()
        wait_until(lambda: self.records.running() == 0, "no job runs", 90)
        self.records.clear()


@contextmanager
def ours_on_servers(bench: Bench, postgres: PostgresServer | None = None, **env: str) -> Generator[Ours]:
    """The API on Redis and PostgreSQL, without a worker."""
    cwd = bench.new_folder()
    url = (postgres or bench.postgres).new_database(bench.migrated)
    urls = {"DATABASE_URL": url, "CELERY_BROKER_URL": bench.redis.new_database()}
    with _serving(bench, "api", cwd, Records(url), **urls, **env) as ours:
        yield ours


@contextmanager
def ours_embedded(bench: Bench, **env: str) -> Generator[Ours]:
    """Everything in one process on a SQLite file."""
    cwd = bench.new_folder()
    with _serving(bench, "up", cwd, Records(f"sqlite:///{cwd / '.celery-jobs' / 'jobs.db'}"), **env) as ours:
        yield ours


@contextmanager
def _serving(bench: Bench, command: str, cwd: Path, records: Records, **env: str) -> Generator[Ours]:
    port = free_port()
    env = bench.environment(**{"JOBS_IMPORTS": "benchmarks.subjects.ours", **env}, BENCH_FOLDER=str(cwd))
    with bench.running(command, [PROGRAM, command, "--port", str(port)], env, cwd) as process:
        await_answer(process, port, "GET", "/readyz")
        ours = Ours(bench, records, env, port, process)
        try:
            yield ours
        finally:
            records.close()


def await_answer(process: Process, port: int, method: str, path: str) -> None:
    """Wait until the process answers; fails at once when it ends before."""

    def answers() -> bool:
        if not process.running:
            raise AssertionError(process.log_tail())
        connection = Connection(port)
        try:
            return connection.send(request_bytes(port, path, "", method))[0] == 200
        finally:
            connection.close()

    wait_until(answers, f"{process.name} answers", 60, ignore=OSError)


def until(predicate: Callable[[], object], what: str, timeout_seconds: float) -> None:
    """Wait with looks that are close enough for a benchmark."""
    wait_until(predicate, what, timeout_seconds, interval=0.01)
