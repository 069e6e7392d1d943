"""Applications that are not ours and mount the second API, as processes: the example, and some that leave more out."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.processes import Process, Processes
from tests.support.service import FOREIGN
from tests.support.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "remote_host"
_SECRET = uuid4().hex

BARE = """
from fastapi import FastAPI
import main
from celery_jobs.api.joblib import (
    ProblemException, get_current_identity, get_db_session, problem_exception_handler, router
)

def host(*left_out, **options):
    app = FastAPI(**options)
    given = {get_db_session: main.my_db_session, get_current_identity: lambda: "somebody"}
    app.dependency_overrides = {each: ours for each, ours in given.items() if each not in left_out}
    app.add_exception_handler(ProblemException, problem_exception_handler)
    app.include_router(router)
    return app

# one whose callers are known by API keys, and others within it
app = host(get_current_identity, lifespan=main.lifespan)
app.mount("/known", host())
app.mount("/forgetful", host(get_db_session))
# the example, with one in it that says of nobody who calls
beside = main.app
beside.mount("/nobody", host(get_current_identity))
"""


def token_maker() -> Callable[[str, bool], str]:
    """The example's own, with the secret of the processes that are started here."""
    spec = importlib.util.spec_from_file_location("remote_host_example", EXAMPLE / "main.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_SECRET", _SECRET)
        spec.loader.exec_module(module)
    return module.make_token


class Client:
    """A user or a worker of a host; every call says which statuses are right."""

    def __init__(self, http: httpx.Client, token: str | None = None, prefix: str = "") -> None:
        self.http, self.url = http, f"{prefix}/v1/joblib"
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, *right: int, json: Any = None, **headers: str) -> httpx.Response:
        answer = self.http.request(method, self.url + path, json=json, headers=self.headers | headers)
        assert answer.status_code in right, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def register(self, room: str, name: str = "Rotate", **more: Any) -> dict[str, Any]:
        asked = {"category": "modifiers", "name": name, **more}
        return self.call("PUT", f"/rooms/{room}/jobs", 200, 201, json=asked).json()

    def submit(self, room: str, name: str = "Rotate", **payload: Any) -> str:
        job = f"{room}:modifiers:{name}"
        return self.call("POST", f"/rooms/{room}/tasks/{job}", 202, json={"payload": payload}).json()["id"]

    def claim(self, wait: int = 0, **asked: Any) -> dict[str, Any] | None:
        return self.call("POST", "/tasks/claim", 200, json=asked, Prefer=f"wait={wait}").json()["task"]

    def task(self, task_id: str, wait: int = 0) -> dict[str, Any]:
        return self.call("GET", f"/tasks/{task_id}", 200, Prefer=f"wait={wait}").json()

    def say(self, task_id: str, status: str, right: int = 200, **more: Any) -> dict[str, Any]:
        return self.call("PATCH", f"/tasks/{task_id}", right, json={"status": status, **more}).json()

    def beat(self, worker: str, right: int = 200) -> dict[str, Any]:
        return self.call("PATCH", f"/workers/{worker}", right).json()


class Host:
    """One process of a host app."""

    def __init__(self, processes: Processes, folder: Path, app: str = "main:app", **env: str) -> None:
        (folder / "bare.py").write_text(BARE, encoding="utf-8")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        env = {name: value.replace("{own url}", self.url) for name, value in env.items()}
        path = os.pathsep.join([str(folder), str(EXAMPLE)])
        command = [sys.executable, "-m", "uvicorn", app, "--port", str(port)]
        self.process: Process = processes.start(
            command, name="host", env={**clean, "PYTHONPATH": path, "HOST_SECRET": _SECRET, **env}, cwd=folder
        )
        self.http = httpx.Client(base_url=self.url, timeout=30, limits=httpx.Limits(max_connections=200))

    def wait_ready(self) -> None:
        """Until it answers; fails at once when it ended."""

        def ready() -> bool:
            assert self.process.running, self.process.log_tail()
            return httpx.get(f"{self.url}/openapi.json", timeout=5).status_code == 200

        wait_until(ready, f"the host answers at {self.url}", 60, ignore=httpx.HTTPError)

    def client(self, token: str | None = None, prefix: str = "") -> Client:
        """Somebody who calls it, or the application that is mounted in it at this prefix."""
        return Client(self.http, token, prefix)


@dataclass
class Pair:
    """Two processes of the host on one database, and who calls them; `room` is the test's own."""

    hosts: tuple[Host, Host]
    token: Callable[[str, bool], str]
    room: str

    def of(self, name: str, process: int = 0, *, admin: bool = False) -> Client:
        """A user or worker of this name, at one of the processes."""
        return self.hosts[process].client(self.token(f"{name}-{self.room}", admin))


def problem(answer: httpx.Response, name: str) -> dict[str, Any]:
    """The document, whose type is the address of a page."""
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert said["type"] == f"/v1/problems/{name}"
    assert said["instance"] == answer.request.url.raw_path.decode().partition("?")[0]
    page = httpx.get(answer.request.url.join(said["type"]), verify=False)
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (200, "text/html")
    assert f"{said['title']} ({answer.status_code}): {name}" in page.text
    return said


def seconds_of(call: Callable[[], Any]) -> float:
    """How long it took."""
    began = time.monotonic()
    call()
    return time.monotonic() - began
