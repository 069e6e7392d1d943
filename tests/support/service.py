"""The product as its users run it: `celery-jobs` in processes of its own, reached over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from tests.support.ports import free_port
from tests.support.processes import Process, Processes
from tests.support.sse import Stream, open_stream
from tests.support.waiting import wait_until

PROGRAM = Path(sys.executable).with_name("celery-jobs")

# What a developer may have set for a service of their own must not reach the tests'.
FOREIGN = ("JOBS_", "CELERY_", "DATABASE_", "ZNDRAW_", "CELERY_JOBS_")

WORKER_READY = " ready"


class HttpProcess:
    """A process that serves HTTP, with a client for it."""

    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=30.0)

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Until /readyz says so; fails at once when the process ends before."""

        def ready() -> bool:
            if not self.process.running:
                raise AssertionError(f"{self.process.name} ended before it was ready\n{self.process.log_tail()}")
            return self.client.get("/readyz", timeout=5.0).status_code == 200

        wait_until(ready, f"{self.process.name} is ready at {self.url}", timeout, ignore=httpx.HTTPError)

    def stream(self, path: str, **options: Any) -> AbstractContextManager[Stream]:
        """An open stream of events; options as in `open_stream`."""
        return open_stream(self.client, path, **options)


class Service:
    """Processes with one environment and one working directory, and so one database, broker and data folder."""

    def __init__(self, processes: Processes, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self._processes = processes
        self._https: list[HttpProcess] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        # a process that a test kills leaves its temporary files where the test's own go
        self.env = {**clean, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(folder), "TMPDIR": str(folder), **env}

    def module(self, name: str, source: str) -> str:
        """Write a Python module that the processes can import, as a user's own; its name, for JOBS_IMPORTS."""
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        return name

    def start(self, *args: str, name: str | None = None, **env: str) -> Process:
        """`celery-jobs` with these arguments, in the background."""
        process_env = {**self.env, **env}
        return self._processes.start([PROGRAM, *args], name=name or args[0], env=process_env, cwd=self.folder)

    def run(self, *args: str, timeout: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        """`celery-jobs` with these arguments, to its end; output and exit status are the test's to check."""
        return subprocess.run(
            [PROGRAM, *args],
            env={**self.env, **env},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def python(self, code: str, timeout: float = 60.0) -> str:
        """What a program of the user's prints, run where the service's modules are."""
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{code}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self, *args: str, ready: bool = True, port: int | None = None, **env: str) -> HttpProcess:
        """All in one; `port` to come back at the address of one that ended."""
        return self._serve("up", args, ready, port, env)

    def api(self, *args: str, ready: bool = True, port: int | None = None, **env: str) -> HttpProcess:
        """An API process only."""
        return self._serve("api", args, ready, port, env)

    def _serve(
        self, command: str, args: tuple[str, ...], ready: bool, port: int | None, env: Mapping[str, str]
    ) -> HttpProcess:
        port = port or free_port()
        process = self.start(command, "--host", "127.0.0.1", "--port", str(port), *args, **env)
        served = HttpProcess(process, f"http://127.0.0.1:{port}")
        self._https.append(served)
        if ready:
            served.wait_ready()
        return served

    def worker(
        self, *args: str, pool: str = "prefork", concurrency: int = 2, ready: bool = True, **env: str
    ) -> Process:
        """A worker process; returns when it takes jobs."""
        process = self.start("worker", "--pool", pool, "--concurrency", str(concurrency), *args, **env)
        if ready:
            process.wait_for_log(WORKER_READY, 60.0)
        return process

    def close(self) -> None:
        """The clients; the processes end with the test's."""
        for served in self._https:
            served.client.close()
