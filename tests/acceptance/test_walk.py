"""The walk of the reference document, with the program it uses, on the service as `make run` starts it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.service import HttpProcess, Service

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "job_scheduler"
JSON = ("-H", "Content-Type: application/json")


def curl(*args: str) -> str:
    """What it prints; the test is skipped where there is no curl."""
    if not shutil.which("curl"):
        pytest.skip("no curl on the PATH")
    return subprocess.run(["curl", "-s", "-N", *args], capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture(params=["celery-jobs up", "the example"])
def served(request: pytest.FixtureRequest, new_service: Callable[..., Service]) -> HttpProcess:
    service = new_service()
    if request.param == "celery-jobs up":
        return service.up()
    port = free_port()
    uvicorn = [sys.executable, "-m", "uvicorn", "main:app", "--app-dir", EXAMPLE, "--port", str(port)]
    process = service._processes.start(uvicorn, name="example", env=service.env, cwd=service.folder)
    example = HttpProcess(process, f"http://127.0.0.1:{port}")
    service._https.append(example)
    example.wait_ready()
    return example


def test_the_walk_of_the_reference_document(served: HttpProcess) -> None:
    jobs = f"{served.url}/api/v1/jobs"
    job = submitted(served.url)
    streamed(f"{jobs}/{job}/$stream")
    record = json.loads(curl(f"{jobs}/{job}"))
    assert (record["id"], record["status"], record["error"]) == (job, "completed", None)
    assert json.loads(curl(f"{served.url}/api/v1/compute/{job}/result")) == {
        "job_id": job,
        "status": "completed",
        **{name: record[name] for name in ("submitted_at", "started_at", "finished_at")},
        "result": 42,
        "error": None,
    }
    assert [each["id"] for each in json.loads(curl(jobs))] == [job]
    assert [each["id"] for each in json.loads(curl(f"{jobs}?status_filter=completed"))] == [job]
    assert json.loads(curl(f"{jobs}?status_filter=running")) == []
    deleted(f"{jobs}/{job}", job)
    assert curl("-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", jobs, *JSON, "-d", "{}") == "405"


def submitted(url: str) -> str:
    """Submit a job; its id."""
    accepted = json.loads(curl("-X", "POST", f"{url}/api/v1/compute", *JSON, "-d", '{"duration": 1}'))
    job = accepted["job_id"]
    poll = f"/api/v1/jobs/{job}"
    assert accepted == {
        "job_id": job,
        "message": f"Job submitted. Use polling (GET {poll}) or streaming (GET {poll}/$stream)",
        "poll_url": poll,
        "stream_url": f"{poll}/$stream",
    }
    return job


def streamed(url: str) -> None:
    """Follow it to its end."""
    frames = curl(url)
    assert frames.endswith("\n\n")
    events = [json.loads(line.removeprefix("data:")) for line in frames.splitlines() if line.startswith("data:")]
    seen = [event["status"] for event in events]
    assert seen in (["pending", "running", "completed"], ["running", "completed"])
    assert events[-1]["finished_at"] is not None
    assert events[-1]["artifact_id"] is None


def deleted(url: str, job: str) -> None:
    """Delete it, and it is gone."""
    assert curl("-X", "DELETE", url, "-w", "%{http_code}") == "204"
    body, status = curl(url, "-w", "\n%{http_code}").rsplit("\n", 1)
    assert status == "404"
    assert json.loads(body) == {
        "type": "urn:servicekit:error:not-found",
        "title": "Resource Not Found",
        "status": 404,
        "detail": f"Job with id {job} not found",
        "instance": f"/api/v1/jobs/{job}",
    }


def test_the_answer_to_a_submit_says_where_to_look(served: HttpProcess) -> None:
    answer = served.client.post("/api/v1/compute", json={"duration": 0.1})
    assert answer.status_code == 202
    assert answer.headers["location"] == answer.json()["poll_url"]
    assert int(answer.headers["retry-after"]) > 0
    for bad in (0.05, 0, -1, 61, "1x", None, True):
        assert served.client.post("/api/v1/compute", json={"duration": bad}).status_code == 422, bad
    assert served.client.post("/api/v1/compute", json={}).status_code == 422
    assert served.client.get("/docs").status_code == 200
    assert "/api/v1/compute" in served.client.get("/openapi.json").json()["paths"]
