"""Every code block of docs/client.md runs, and does what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from celery_jobs.client import ClientError, JobManager, SubmittedTask
from tests.support.processes import Process, Processes
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("client-docs")

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "client.md").read_text(encoding="utf-8")
DOCUMENTED_URL = "http://127.0.0.1:8000"
BLOCKS = {
    block.partition("\n")[0].removeprefix("# "): block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}


class Page:
    """The files of the page in a folder, for the service of the tests."""

    def __init__(self, processes: Processes, folder: Path, url: str, env: dict[str, str]) -> None:
        self._processes, self._folder, self._url, self._env = processes, folder, url, env
        for name, block in BLOCKS.items():
            (folder / name).write_text(self.here(block), encoding="utf-8")

    def here(self, text: str) -> str:
        assert "http" not in text or DOCUMENTED_URL in text
        return text.replace(DOCUMENTED_URL, self._url)

    def start(self, name: str) -> Process:
        return self._processes.start([sys.executable, name], name=name, env=self._env, cwd=self._folder)

    def run(self, name: str) -> str:
        """What it prints."""
        command = [sys.executable, name]
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_command(self) -> Process:
        (command,) = re.findall(r"```bash\npython (-m celery_jobs.*?)\n```", PAGE)
        program = [sys.executable, *shlex.split(self.here(command))]
        return self._processes.start(program, name="command", env=self._env, cwd=self._folder)


@pytest.fixture
def page(processes: Processes, tmp_path: Path, served: Stack, url: str) -> Page:
    return Page(processes, tmp_path, url, served.service.env)


def submit(jobs: JobManager, name: str, room: str = "@global", /, **fields: object) -> SubmittedTask:
    """A task for a job that a starting worker is about to register."""
    job = type(name, (BaseModel,), {"__module__": __name__, "model_config": {"extra": "allow"}})

    def submitted() -> SubmittedTask:
        return jobs.submit(job(**fields), room="room_123", job_room=room)

    return wait_until(submitted, f"{name} can be submitted", 30, ignore=ClientError)


def test_every_file_of_the_page_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert len(BLOCKS) >= 7
    assert [name for name in BLOCKS if f'"{name}"' not in source] == []


def test_the_worker_and_the_submitter(page: Page, jobs: JobManager) -> None:
    worker = page.start("rotate_worker.py")
    submit(jobs, "Rotate", angle=1).wait(20)
    assert "completed {'angle': 40.0} None" in page.run("rotate.py")
    worker.interrupt()
    assert worker.wait() == 0


def test_the_handler_that_hears_of_a_cancel(page: Page, jobs: JobManager) -> None:
    worker = page.start("atoms_worker.py")
    assert submit(jobs, "Relax", steps=1).wait(20).result == "relaxed"
    task = submit(jobs, "Relax", steps=600)
    wait_until(lambda: task.refresh().status == "running", "it runs")
    task.cancel()
    worker.wait_for_log("is dropped: 409")
    assert submit(jobs, "Relax", steps=0).wait(20).result == "relaxed"


def test_the_loop_of_ones_own(page: Page, jobs: JobManager) -> None:
    worker = page.start("loop_worker.py")
    empty = submit(jobs, "Sum", "room_123", numbers=[])
    assert empty.wait(20).error == "there is nothing to add"
    assert submit(jobs, "Sum", "room_123", numbers=[1, 2]).wait(20).result == 3
    assert submit(jobs, "Sum", "room_123", numbers=[42]).wait(20).result == 42
    assert worker.wait() == 0
    assert worker.log == ""


def test_the_command(page: Page, jobs: JobManager) -> None:
    assert "my_jobs.py" in BLOCKS
    worker = page.start_command()
    assert submit(jobs, "Greet", name="Ada").wait(20).result == "Hello Ada"
    worker.terminate()
    assert worker.wait() == 0


def test_the_errors(page: Page) -> None:
    assert page.run("refused.py").startswith("404 Not Found ")


def test_the_http_client_of_ones_own(page: Page) -> None:
    assert len(page.run("own_api.py").strip()) == 36
