"""The pytest plugin as its users have it: their folder, their files, a pytest of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.xdist_group("testing-plugin")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL)

SETTINGS = """
[pytest]
addopts = --strict-markers -p no:cacheprovider
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
"""

# nothing of this may reach a test's service
HOSTILE = {
    "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
    "CELERY_BROKER_READ_URL": "redis://127.0.0.1:1/1",
    "CELERY_BROKER_WRITE_URL": "redis://127.0.0.1:1/2",
    "CELERY_RESULT_BACKEND": "redis://127.0.0.1:1/3",
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
    "JOBS_DEFAULT_QUEUE": "theirs",
    "JOBS_IMPORTS": "no_such_module",
    "JOBS_MAX_CONCURRENCY": "-1",
    "JOBS_MISSPELT": "yes",
}

TASKS = """
import threading
from celery_jobs.tasks import job
from celery_jobs.tasks.scheduler import CeleryScheduler

class Mine(CeleryScheduler):
    pass

let_go = threading.Event()

@job
def add(left: int, right: int) -> int:
    return left + right

@job
def stubborn() -> None:
    let_go.wait(60)
"""

TESTS = """
import os, sys, tempfile, threading, time
import pytest
from celery import Celery, current_app
from celery_jobs.tasks.celery import app as ours
from celery_jobs.testing import wait_for
from tasks import Mine, add

os.chdir(tempfile.mkdtemp())
theirs = Celery("theirs", broker="memory://")

def surroundings():
    apps = []
    thread = threading.Thread(target=lambda: apps.append(current_app.main))
    thread.start()
    thread.join()
    names = ("broker_url", "broker_read_url", "broker_write_url", "task_acks_late", "task_default_queue")
    environment = dict(os.environ) | {"PYTEST_CURRENT_TEST": ""}
    return [current_app.main, *apps, environment, list(sys.path), {name: ours.conf.get(name) for name in names}]

before = surroundings()

@pytest.mark.parametrize("number", range(4))
def test_each_has_its_own_jobs(jobs_service, number):
    assert jobs_service.jobs == []
    job = wait_for(jobs_service.submit(add, number, 1))
    assert job.result == number + 1
    assert job.record.queue == "jobs"
    assert wait_for(jobs_service.submit(lambda: "here")).result == "here"

def test_a_message_arrives_too(jobs_service):
    add.delay(1, 2)
    while not jobs_service.jobs:
        time.sleep(0.01)
    assert wait_for(jobs_service.jobs[0]).result == 3

@pytest.mark.celery_jobs(max_concurrency=1, scheduler="tasks:Mine")
async def test_the_mark_is_known(jobs_service):
    assert jobs_service.run(jobs_service.scheduler.queue("jobs")).max_concurrency == 1
    assert type(jobs_service.scheduler) is Mine

def test_one_without_it_finds_all_as_it_was():
    assert surroundings() == before
    assert "embedded-worker" not in [thread.name for thread in threading.enumerate()]
    assert ours.connection_for_write().as_uri().endswith("127.0.0.1:1/2")
    assert ours.backend.as_uri() == os.environ["CELERY_RESULT_BACKEND"]

def test_and_the_next_with_it_works_again(jobs_service):
    assert wait_for(jobs_service.submit(add, 1, 2)).result == 3
"""


FAULTS = """
import pytest
from celery_jobs.testing import wait_for
import tasks

def test_wait(jobs_service):
    wait_for(jobs_service.submit(tasks.add, 1, right=2), "failed")

def test_leave(jobs_service):
    wait_for(jobs_service.submit(tasks.stubborn), "running")

def test_after_it(jobs_service):
    assert jobs_service.jobs == []
    jobs_service.set_max_concurrency(1)
    assert wait_for(jobs_service.submit(tasks.add, 1, 2)).result == 3
    tasks.let_go.set()

@pytest.mark.celery_jobs(max_concurency=1)
def test_misspelt(jobs_service):
    pass

@pytest.mark.celery_jobs(database="sqlite:///mine.db")
def test_impossible(jobs_service):
    pass
"""


@pytest.fixture
def user(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with somebody's tasks."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini(SETTINGS)
    pytester.makepyfile(tasks=TASKS)
    return pytester


def run(user: pytest.Pytester, *args: str) -> pytest.RunResult:
    return user.runpytest_subprocess("-p", "no:xdist" if "-n" not in args else "xdist", *args, timeout=100)


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_the_fixture_works_in_anybodys_environment_and_leaves_no_trace(
    user: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, processes: list[str]
) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    user.makepyfile(test_shop=TESTS)
    run(user, *processes).assert_outcomes(passed=8)


def test_a_failing_wait_and_a_job_that_does_not_end_are_told(user: pytest.Pytester) -> None:
    user.makepyfile(test_shop=FAULTS)
    told = run(user)
    told.assert_outcomes(passed=2, failed=1, errors=3)
    told.stdout.fnmatch_lines_random(
        [
            ">*wait_for(jobs_service.submit(tasks.add, 1, right=2), *failed*)",
            "E*AssertionError: job * (tasks.add) is completed, not failed",
            "E*history: pending -> running -> completed",
            "E*this test has left jobs that do not end when they are canceled:",
            "E*tasks.stubborn (*) still runs after 5 s, in wait (*threading.py:*)",
            "E*max_concurency is no setting of this service; did you mean max_concurrency?",
            "E*the service of a test has no database: *",
        ]
    )
    told.stdout.no_fnmatch_line("*def wait_for(*")


def test_an_app_that_runs_in_the_same_test_is_refused_and_afterwards_is_fine(user: pytest.Pytester) -> None:
    user.makepyfile(
        test_shop="""
        import pytest_asyncio
        from celery_jobs.api import BaseServiceBuilder, ServiceInfo
        from celery_jobs.testing import wait_for
        from tasks import add

        @pytest_asyncio.fixture
        async def scheduler(tmp_path, monkeypatch):
            monkeypatch.setenv("JOBS_DATA_DIR", str(tmp_path))
            app = BaseServiceBuilder(info=ServiceInfo(id="shop", display_name="Shop")).with_jobs().build()
            async with app.router.lifespan_context(app):
                yield app.state.scheduler

        def test_before(jobs_service):
            wait_for(jobs_service.submit(add, 1, 2))

        async def test_app(scheduler):
            job_id = await scheduler.add_job(add, 1, 2)
            await scheduler.wait(job_id, 10)
            assert len(await scheduler.get_all_records()) == 1

        async def test_both(scheduler, jobs_service):
            pass

        def test_after(jobs_service):
            wait_for(jobs_service.submit(add, 1, 2))
        """
    )
    told = run(user)
    told.assert_outcomes(passed=3, errors=1)
    told.stdout.fnmatch_lines(["E*RuntimeError: another service runs in this process*"])


def test_the_plugin_can_be_left_out(user: pytest.Pytester) -> None:
    user.makepyfile(test_shop="def test_plain(): pass\ndef test_with(jobs_service): pass")
    told = run(user, "-p", "no:celery_jobs")
    told.assert_outcomes(passed=1, errors=1)
    told.stdout.fnmatch_lines(["E*fixture 'jobs_service' not found"])


def test_loading_the_plugin_loads_nothing_else() -> None:
    code = "import sys, pytest; known = set(sys.modules); import pytest_celery_jobs; print(set(sys.modules) - known)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "{'pytest_celery_jobs'}\n"


def test_the_page_is_true(user: pytest.Pytester) -> None:
    names = [name for name, _ in BLOCKS]
    assert names == ["my_tasks", "test_direct", "test_jobs", "test_submitting", "test_settings"]
    user.makepyfile(**dict(BLOCKS))
    run(user).assert_outcomes(passed=sum(block.count("def test_") for _, block in BLOCKS))
