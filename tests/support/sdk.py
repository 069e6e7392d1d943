"""Remote workers as their users run them: the SDK in a process of its own, and how the service sees it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from pydantic import BaseModel

from celery_jobs.client import ClaimedTask, JobManager, SubmittedTask
from tests.support import sdk_tasks
from tests.support.processes import Process, Processes
from tests.support.waiting import wait_until

BEAT_SECONDS = 0.5
BEAT = ("--heartbeat-interval", str(BEAT_SECONDS))
TAKES_TASKS = "taking tasks"
JOBLIB = "/v1/joblib"


def soon(timeout_seconds: float) -> dict[str, str]:
    """Settings of a service that soon takes a silent worker for dead."""
    return {
        "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS": str(timeout_seconds),
        "ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": "0.3",
        "ZNDRAW_JOBLIB_CLAIM_TIMEOUT_SECONDS": "1.5",
    }


class SdkWorkers:
    """Starts workers in a folder with the module `sdk_tasks`, for the server at a URL."""

    def __init__(self, processes: Processes, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self._processes, self._env = processes, dict(env)
        (folder / "sdk_tasks.py").write_text(Path(sdk_tasks.__file__).read_text(encoding="utf-8"), encoding="utf-8")

    def command(self, url: str, *args: str, ready: bool = True, **env: str) -> Process:
        """`python -m celery_jobs.client sdk_tasks`; returns when it takes tasks."""
        modules = () if args and not args[0].startswith("-") else ("sdk_tasks",)
        program = [sys.executable, "-m", "celery_jobs.client", *modules, *args, "--url", url]
        return self._start(program, ready, env)

    def script(self, source: str, *args: str, ready: bool = True, **env: str) -> Process:
        """A program of the user's own."""
        file = self.folder / f"worker_{uuid4().hex[:8]}.py"
        file.write_text(source, encoding="utf-8")
        return self._start([sys.executable, str(file), *args], ready, env)

    def _start(self, program: list[str], ready: bool, env: Mapping[str, str]) -> Process:
        process = self._processes.start(program, name="sdk-worker", env={**self._env, **env}, cwd=self.folder)
        if ready:
            process.wait_for_log(TAKES_TASKS, 30)
        return process

    def hold(self) -> sdk_tasks.Hold:
        """A task that runs until it is released, under a fresh name."""
        return sdk_tasks.Hold(name=uuid4().hex[:12])

    def wait_began(self, held: sdk_tasks.Hold) -> None:
        """Until its code runs."""
        wait_until((self.folder / f"{held.name}.began").exists, f"the task {held.name} runs")

    def release(self, held: sdk_tasks.Hold) -> None:
        """Let it end."""
        (self.folder / f"{held.name}.go").touch()

    def runs_of_double(self) -> list[int]:
        """The numbers of all runs of Double, in order."""
        file = self.folder / "runs.txt"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


def workers_seen(client: httpx.Client) -> dict[str, list[str]]:
    """The workers that the service knows, and their jobs."""
    answer = client.get(f"{JOBLIB}/workers", params={"limit": 1000})
    answer.raise_for_status()
    return {worker["id"]: worker["jobs"] for worker in answer.json()["items"]}


def forget_workers(client: httpx.Client) -> None:
    """Take away the workers that earlier tests left when they were killed."""
    for worker in workers_seen(client):
        client.delete(f"{JOBLIB}/workers/{worker}").raise_for_status()


def task_seen(client: httpx.Client, task: str) -> dict[str, Any]:
    """A task as anybody sees it."""
    answer = client.get(f"{JOBLIB}/tasks/{task}")
    answer.raise_for_status()
    return answer.json()


def fresh(task_class: type[BaseModel]) -> type[Any]:
    """The class under a name that no other test has registered."""
    return type(f"{task_class.__name__}{uuid4().hex[:8]}", (task_class,), {"__module__": __name__})


class Rotate(BaseModel):
    """Gives back its angle and what it was called with."""

    angle: float = 0.0

    def run(self, *args: Any) -> list[Any]:
        return [self.angle, *args]


def claimed(jobs: JobManager, task_class: type[Any], **fields: Any) -> ClaimedTask:
    """A task of a fresh class, registered, submitted and claimed."""
    made = fresh(task_class)
    jobs.register(made)
    submitted = jobs.submit(made(**fields), room="room_1")
    task = next(jobs.listen())
    assert task.id == submitted.id
    return task


def submit_hold(jobs: JobManager, held: sdk_tasks.Hold) -> SubmittedTask:
    """Submit it to the workers of `SdkWorkers`."""
    return jobs.submit(held, room="room_1", job_room="room_1")
