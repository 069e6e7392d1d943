"""The examples as their first lines say to start them: submit, follow, fetch, list, cancel, delete, end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.processes import Processes
from tests.support.service import FOREIGN, HttpProcess
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = Path(sys.executable).parent
COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "uvicorn": lambda folder: ["--app-dir", str(folder), "main:app"],
    "fastapi": lambda folder: ["dev", str(folder / "main.py")],
}
Serve = Callable[..., HttpProcess]
BOTH = pytest.mark.parametrize("command", COMMANDS)

pytestmark = pytest.mark.xdist_group("examples")


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts an example in a folder of its own, or gives the one that was started so before."""
    ledger = Processes(tmp_path_factory.mktemp("logs"))
    running: dict[tuple[str, ...], HttpProcess] = {}

    def start(name: str, command: str = "uvicorn", copy: str = "first") -> HttpProcess:
        if (name, command, copy) not in running:
            folder, port = tmp_path_factory.mktemp(f"{name}-{copy}"), free_port()
            env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
            env |= {"JOBS_DATA_DIR": str(folder / "data"), "PYTHONUNBUFFERED": "1"}
            asked = [PROGRAMS / command, *COMMANDS[command](EXAMPLES / name), "--port", str(port)]
            process = ledger.start(asked, name=f"{name} under {command}", env=env, cwd=folder)
            running[name, command, copy] = HttpProcess(process, f"http://127.0.0.1:{port}")
            running[name, command, copy].wait_ready()
        return running[name, command, copy]

    yield start
    with redirect_stdout(StringIO()):
        ledger.end_all()
    for served in running.values():
        served.client.close()


def submit(served: HttpProcess, path: str, **body: Any) -> str:
    answer = served.client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["job_id"]


def record(served: HttpProcess, job_id: str) -> dict[str, Any]:
    answer = served.client.get(f"/api/v1/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def listed(served: HttpProcess, query: str = "") -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in served.client.get(f"/api/v1/jobs{query}").json()}


def follow(served: HttpProcess, job_id: str, last_event_id: str = "0-0-0") -> list[dict[str, Any]]:
    """What a stream tells after the submit, to its end."""
    with served.stream(f"/api/v1/jobs/{job_id}/$stream", last_event_id=last_event_id) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        return [event.data for event in stream.rest() if event.data is not None]


def canceled_and_deleted(served: HttpProcess, long: Callable[[], str]) -> None:
    """A job that runs is canceled; another is deleted under an open stream."""
    job_id = long()
    wait_until(lambda: record(served, job_id)["status"] == "running", "it runs")
    answer = served.client.post(f"/api/v1/jobs/{job_id}/$cancel")
    assert (answer.status_code, answer.json()["id"]) == (202, job_id)
    assert follow(served, job_id)[-1]["status"] == "canceled"
    job_id = long()
    with served.stream(f"/api/v1/jobs/{job_id}/$stream") as stream:
        stream.until(lambda event: event.status == "running", "it runs")
        assert served.client.delete(f"/api/v1/jobs/{job_id}").status_code == 204
        assert stream.rest()[-1].data == {"status": "deleted"}
    assert served.client.get(f"/api/v1/jobs/{job_id}").status_code == 404
    assert job_id not in listed(served)


@BOTH
def test_the_job_scheduler_does_what_its_first_lines_say(serve: Serve, command: str) -> None:
    served = serve("job_scheduler", command)
    job_id = submit(served, "/api/v1/compute", duration=0.5)
    assert [event["status"] for event in follow(served, job_id)] == ["running", "completed"]
    assert served.client.get(f"/api/v1/compute/{job_id}/result").json()["result"] == 42
    assert listed(served, "?status_filter=completed")[job_id]["task"] == "compute"
    canceled_and_deleted(served, lambda: submit(served, "/api/v1/compute", duration=60))


def test_two_copies_on_one_machine_know_nothing_of_each_other(serve: Serve) -> None:
    first, second = serve("job_scheduler"), serve("job_scheduler", copy="second")
    jobs = {served: submit(served, "/api/v1/compute", duration=0.2) for served in (first, second)}
    for served, job_id in jobs.items():
        assert follow(served, job_id)[-1]["status"] == "completed"
    assert jobs[first] not in listed(second)
    assert jobs[second] not in listed(first)


@BOTH
def test_the_custom_scheduler_serves_jobs_in_memory(serve: Serve, command: str) -> None:
    served = serve("custom_scheduler", command)
    job_id = submit(served, "/api/v1/render", frames=5)
    assert [event["status"] for event in follow(served, job_id)] == ["running", "completed"]
    assert served.client.get(f"/api/v1/jobs/{job_id}/$result").json()["result"] == {"frames": 5}
    assert listed(served, "?status_filter=completed")[job_id]["task"] == "render"
    compute = submit(served, "/api/v1/compute", duration=0.2)
    assert follow(served, compute)[-1]["status"] == "completed"
    assert served.client.get(f"/api/v1/compute/{compute}/result").json()["result"] == 42
    canceled_and_deleted(served, lambda: submit(served, "/api/v1/render", frames=600))
    refused = served.client.post(f"/api/v1/jobs/{job_id}/$retry")
    assert (refused.status_code, refused.json()["type"]) == (501, "urn:servicekit:error:not-supported")
    assert served.client.get("/health").json()["checks"].keys() == {"scheduler"}


def test_the_custom_scheduler_honours_its_limit(serve: Serve) -> None:
    served = serve("custom_scheduler")
    jobs = [submit(served, "/api/v1/render", frames=600) for _ in range(7)]
    counts = [record(served, job_id)["status"] for job_id in jobs]
    assert (counts.count("running"), counts.count("pending")) == (5, 2)
    assert served.client.patch("/api/v1/queues/jobs", json={"max_concurrency": 6}).json()["running"] == 6
    for job_id in reversed(jobs):
        served.client.delete(f"/api/v1/jobs/{job_id}")
    served.client.patch("/api/v1/queues/jobs", json={"max_concurrency": 5})


def test_nothing_of_the_custom_scheduler_stays_on_disk_and_it_ends_with_open_streams(serve: Serve) -> None:
    served = serve("custom_scheduler", copy="to end")
    job_id = submit(served, "/api/v1/render", frames=30)
    folder = next(path for path in Path(served.process.log_file).parents[1].glob("custom_scheduler-to end*"))
    with served.stream(f"/api/v1/jobs/{job_id}/$stream") as stream:
        stream.until(lambda event: event.status == "running", "it runs")
        assert list(folder.iterdir()) == []
        served.process.terminate()
        assert stream.rest() == [], "it ends at once, and the job gets the time that it needs"
        assert served.process.running
    served.process.wait(10)
    assert "Traceback" not in served.process.log


def test_tagged_records_have_fields_of_their_own_everywhere(serve: Serve) -> None:
    served = serve("tagged_records")
    job_id = submit(served, "/api/v1/reports", customer="Ada", seconds=0.3)
    told = follow(served, job_id)
    fields = [(event["status"], event["department"], event["words"]) for event in told]
    assert fields == [("running", "sales", None), ("completed", "sales", 5)]
    for shown in (record(served, job_id), listed(served)[job_id]):
        assert (shown["department"], shown["words"], shown["tags"]) == ("sales", 5, ["report"])
    assert listed(served, "?tag=report&status_filter=completed").keys() == {job_id}
    result = served.client.get(f"/api/v1/reports/{job_id}/result").json()
    assert result["result"] == "All is well with Ada"
    canceled_and_deleted(served, lambda: submit(served, "/api/v1/reports", customer="Ada", seconds=2))


@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/main.py")))
def test_an_example_imports_without_side_effects(name: str, tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    done = subprocess.run(
        [sys.executable, "-c", "import json, main; print(json.dumps(main.app.openapi()['info']))"],
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(EXAMPLES / name), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["title"]
    assert list(tmp_path.iterdir()) == []
