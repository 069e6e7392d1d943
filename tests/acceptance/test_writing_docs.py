"""Every Python block of docs/writing-tasks.md runs in a service, and does what the page says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_jobs.tasks.options import CELERYS, OURS
from tests.acceptance.kinds import each
from tests.support.jobs import good
from tests.support.stack import EMBEDDED, PREFORK, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("writing-docs")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "writing-tasks.md").read_text(encoding="utf-8")
BLOCKS = {
    block.partition("\n")[0].removeprefix("# "): block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}
(IMPORTS,) = re.findall(r"JOBS_IMPORTS=(\S+) celery-jobs up", PAGE)


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK), ids=str)
def stack(
    request: pytest.FixtureRequest, start_stack: Callable[..., Stack], tmp_path_factory: pytest.TempPathFactory
) -> Stack:
    folder = tmp_path_factory.mktemp("page")
    for name, block in BLOCKS.items():
        (folder / name).write_text(block, encoding="utf-8")
    return start_stack(request.param, PYTHONPATH=str(folder), JOBS_IMPORTS=IMPORTS)


def finished(stack: Stack, task: str, **arguments: Any) -> Any:
    """What it returned."""
    job = stack.jobs.submit(task, **arguments)
    stack.jobs.wait(job, "completed")
    return stack.jobs.result(job)["result"]


def running(stack: Stack, task: str, **arguments: Any) -> str:
    """A job that has said how far it is, if it ever does."""
    job = stack.jobs.submit(task, **arguments)
    stack.jobs.wait(job, "running")
    return job


def test_the_service_imports_all_that_the_page_shows() -> None:
    assert sorted(BLOCKS) == sorted(f"{name}.py" for name in IMPORTS.split(","))


def test_the_table_of_options_names_options() -> None:
    table = PAGE.partition("## Options")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named <= OURS | CELERYS
    assert named >= OURS


def test_progress_and_cancel(stack: Stack) -> None:
    assert finished(stack, "video.render", frames=2) == {"frames": 2}
    for task, arguments, mode in (("render", {"frames": 600}, "interrupt"), ("convert", {"path": "a"}, "wait")):
        job = running(stack, f"video.{task}", **arguments)
        wait_until(lambda job=job: stack.jobs.record(job)["progress"], "it says how far it is")
        assert stack.jobs.cancel(job).json()["cancel_mode"] == mode
        stack.jobs.wait(job, "canceled", timeout=5)
    record = stack.jobs.record(job := stack.jobs.submit("video.convert", path="a", parts=1))
    assert (record["queue"], record["priority"]) == ("conversions", 10)
    stack.jobs.wait(job, "completed")
    log = stack.process if stack.kind.embedded else stack.workers[0]
    log.wait_for_log(f"[{job}] a is converted")


def test_arguments_and_results(stack: Stack) -> None:
    (body,) = re.findall(r"-d '(\{\"lines\".*?)'\n", PAGE)
    assert finished(stack, "orders.place", **json.loads(body)) == {"pieces": 3, "due": "2030-01-02"}
    for lines, place in (([{"article": "cup", "count": 101}], [0, "count"]), ([{"size": "l"}], [0, "article"])):
        answer = stack.jobs.client.post("/api/v1/tasks/orders.place", json={"lines": lines, "due": "2030-01-02"})
        assert good(answer, 422).json()["errors"][0]["loc"] == ["body", "lines", *place]


def test_the_clean_up_of_a_canceled_export(stack: Stack) -> None:
    target = stack.service.folder / "export.csv"
    job = running(stack, "exports.export", target=str(target), rows=5_000)
    wait_until(target.exists, "it writes")
    stack.jobs.cancel(job)
    assert stack.jobs.wait(job, "canceled", timeout=10)["error"] is None
    assert not target.exists()
    assert finished(stack, "exports.export", target=str(target), rows=2) == 2
    assert target.read_text() == "0\n1\n"


def test_retries(stack: Stack) -> None:
    late, asked = stack.service.folder / "late", stack.service.folder / "asked"
    read, poll = (
        stack.jobs.submit(f"fetching.{task}", path=str(path)) for task, path in (("read", late), ("poll", asked))
    )
    for job in (read, poll):
        wait_until(lambda job=job: stack.jobs.record(job)["run_at"], "it will be tried again")
    late.write_text("here")
    asked.touch()
    for job in (read, poll):
        assert stack.jobs.wait(job, "completed")["attempt"] > 1
    assert stack.jobs.result(read)["result"] == "here"
    assert stack.jobs.result(poll)["result"] == stack.jobs.record(poll)["attempt"] - 1


def test_the_soft_limit_that_is_caught(stack: Stack) -> None:
    assert finished(stack, "fetching.watch", path="/no/such/file") == "nothing"
    assert finished(stack, "fetching.watch", path="/") == "there"


def test_the_task_that_may_run_again_and_a_call_outside_of_a_job(stack: Stack) -> None:
    source, target = stack.service.folder / "source", stack.service.folder / "target"
    source.write_text("é")
    assert finished(stack, "importing.copy", source=str(source), target=str(target)) == 1
    assert target.read_text() == "é"
    called = f"from pathlib import Path; from importing import copy; print(copy(Path({str(source)!r}), Path('copied')))"
    assert stack.service.python(called).strip() == "1"
    outside = "from video import convert\ntry:\n    convert('a')\nexcept RuntimeError as error:\n    print(error)"
    assert "only inside a running job" in stack.service.python(outside)
