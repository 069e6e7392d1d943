"""The scripts of docs/front-ends.md, each run as it stands: curl, httpx, and the client that a generator makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import front_ends
from tests.support.processes import MARK, MARK_VALUE
from tests.support.programs import program
from tests.support.proxy import Proxy
from tests.support.service import PROGRAM
from tests.support.sse import parse
from tests.support.stack import EMBEDDED, Stack

pytestmark = pytest.mark.xdist_group("front-ends")


class Scripts:
    """Blocks of the page as files that talk to one service."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.url = stack.apis[0].url
        self._folder = folder
        path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
        self._env = {**stack.service.env, "PATH": path, "PYTHONPATH": str(folder), MARK: MARK_VALUE}

    def start(self, name: str) -> subprocess.Popen[str]:
        """It runs; what it prints can be read."""
        front_ends.write(self._folder, self.url, name)
        command = [sys.executable] if name.endswith(".py") else [program("bash", "bash"), "-euo", "pipefail"]
        pipe = subprocess.PIPE
        return subprocess.Popen([*command, name], cwd=self._folder, env=self._env, stdout=pipe, stderr=pipe, text=True)

    def run(self, name: str) -> str:
        """What it prints; any error fails."""
        with self.start(name) as script:
            return rest(script)


def rest(script: subprocess.Popen[str]) -> str:
    """What it still prints until its end, which must be a good one."""
    try:
        printed, errors = script.communicate(timeout=60)
    finally:
        script.kill()
    assert (script.returncode, errors) == (0, ""), f"{printed}{errors}"
    return printed


@pytest.fixture(scope="module")
def service(start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(EMBEDDED)


@pytest.fixture
def scripts(service: Stack, tmp_path: Path) -> Scripts:
    return Scripts(service, tmp_path / "scripts")


@pytest.fixture
def curl() -> None:
    program("curl", "curl")


def documents(printed: str) -> list[Any]:
    """JSON documents that stand one after the other."""
    found: list[Any] = []
    while printed := printed.lstrip():
        document, end = json.JSONDecoder().raw_decode(printed)
        found.append(document)
        printed = printed[end:]
    return found


@pytest.mark.usefixtures("curl")
def test_curl_waits_for_a_short_job(scripts: Scripts) -> None:
    first, again = (documents(scripts.run("short.sh"))[0] for _ in range(2))
    assert (first["status"], first["result"]) == ("completed", 42)
    assert again["job_id"] == first["job_id"], "the same Idempotency-Key gives the first job again"


@pytest.mark.usefixtures("curl")
def test_curl_follows_a_job(scripts: Scripts) -> None:
    followed, result, resumed = scripts.run("follow.sh").partition('{"job_id"')
    result, _, resumed = (result + resumed).partition("id: ")
    statuses = [[event.status for event in parse(part.splitlines())] for part in (followed, f"id: {resumed}")]
    assert statuses[0][-2:] == ["running", "completed"]
    assert statuses[1] == ["completed"]
    assert documents(result)[0]["result"] == 42


@pytest.mark.usefixtures("curl")
def test_curl_cancels_and_deletes_a_job(scripts: Scripts) -> None:
    asked, ended, refused = documents(scripts.run("cancel.sh"))
    assert asked["cancel_requested_at"]
    assert ended["status"] == "canceled"
    assert (refused["status"], refused["type"]) == (404, "urn:servicekit:error:not-found")


def test_httpx_follows_and_cancels_a_job(scripts: Scripts) -> None:
    lines = [line.strip() for line in scripts.run("follow.py").splitlines()]
    completed, canceled = lines.index("42"), lines.index("canceled")
    assert lines[completed - 2 : completed] == ["running", "completed"]
    assert set(lines[: completed - 2]) <= {"pending"}
    assert [line for line in lines[completed + 1 : canceled] if line not in ("pending", "canceling")] == ["running"]
    assert lines[canceled + 1 :][0].startswith("422 ")


def test_httpx_tells_once_and_in_order_what_happened_while_the_connection_was_lost(
    scripts: Scripts, service: Stack
) -> None:
    service.jobs.change_queue(paused=True)
    with Proxy(int(scripts.url.rpartition(":")[2])).serving() as proxy:
        scripts.url = f"http://127.0.0.1:{proxy.port}"
        with scripts.start("follow.py") as script:
            assert script.stdout is not None
            assert script.stdout.readline().strip() == "pending"
            proxy.refuse()
            service.jobs.change_queue(paused=False)
            service.jobs.wait(service.jobs.list()[0]["id"], "completed")
            proxy.accept()
            lines = [line.strip() for line in rest(script).splitlines()]
    assert lines[:3] == ["running", "completed", "42"]


def test_httpx_waits_for_many_jobs_at_once(scripts: Scripts, service: Stack) -> None:
    assert scripts.run("wait_async.py").splitlines() == ["[42, 42, 42]", "took too long, and is canceled"]
    service.jobs.wait(service.jobs.list()[0]["id"], "canceled")


def test_a_generated_client_is_driven_as_the_page_says(scripts: Scripts) -> None:
    assert "WARNING" not in scripts.run("generate.sh")
    lines = scripts.run("use_client.py").splitlines()
    assert lines[:3] == ["completed 42", "canceled", "1"]
    assert lines[3].startswith("404 Job with id ")
