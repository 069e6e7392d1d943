"""The peer: FastAPI and Celery and nothing of ours, on the same Redis server, as people write it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import redis

from benchmarks.stand.servers import Bench, await_answer
from tests.support.ports import free_port
from tests.support.processes import Process


@dataclass(frozen=True)
class Endpoints:
    """A peer over HTTP."""

    port: int
    process: Process


class Bare:
    """A Celery with its defaults, its worker and its endpoints; `database` is what its lists read."""

    def __init__(self, bench: Bench, *, backend: bool, database: str = "") -> None:
        self.bench = bench
        self.broker = bench.redis.new_database()
        self.results = bench.redis.new_database() if backend else ""
        self.cwd = bench.new_folder()
        self.env = bench.environment(BENCH_BROKER=self.broker, BENCH_BACKEND=self.results, BENCH_DATABASE=database)

    @contextmanager
    def http(self, module: str = "http") -> Generator[Endpoints]:
        """Its endpoints, served by the same server with the same settings as ours; `module` is one of the subjects."""
        port = free_port()
        where = ["--host", "127.0.0.1", "--port", str(port)]
        how = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
        args = [sys.executable, "-m", "uvicorn", f"benchmarks.subjects.{module}:app", *where, *how]
        with self.bench.running("peer", args, self.env, self.cwd) as process:
            await_answer(process, port, "GET", "/openapi.json")
            yield Endpoints(port, process)

    @contextmanager
    def worker(self, pool: str, slots: int) -> Generator[Process]:
        """Celery's own worker, with its defaults."""
        args = [sys.executable, "-m", "celery", "-A", "benchmarks.subjects.bare", "worker", "--loglevel", "INFO"]
        options = ["--pool", pool, "--concurrency", str(slots), "--hostname", f"bare-{pool}-{time.monotonic_ns()}"]
        with self.bench.running(f"bare-{pool}", [*args, *options], self.env, self.cwd) as process:
            process.wait_for_log(" ready", 60)
            yield process

    def clear(self) -> None:
        """Throw the waiting messages and the results away."""
        for url in filter(None, (self.broker, self.results)):
            with redis.Redis.from_url(url) as client:
                if url == self.results:
                    client.flushdb()
                else:
                    client.delete("bare")

    def produce(self, count: int, *, held: bool = False) -> tuple[float, float]:
        """Send no-op messages in a loop from a program of its own (one more, to connect): when it began, its rate."""
        args = [sys.executable, "-m", "benchmarks.subjects.producer", str(count), "held" if held else "pool"]
        began, rate = json.loads(self._run(args))
        return began, rate

    def control(self, command: str) -> None:
        """`cancel_consumer` or `add_consumer`, by Celery's own command."""
        self._run([sys.executable, "-m", "celery", "-A", "benchmarks.subjects.bare", "control", command, "bare"])

    def _run(self, args: list[str]) -> str:
        return subprocess.run(
            args, env=self.env, cwd=self.cwd, stdout=subprocess.PIPE, text=True, check=True, timeout=120
        ).stdout
