"""The programs of docs/python.md run as they stand, and do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.processes import Processes
from tests.support.service import FOREIGN, HttpProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("python-docs")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
SERVICES = ["my_service", "drawing", "orders", "tagged"]
PROGRAMS = Path(sys.executable).parent
Serve = Callable[[str], HttpProcess]


def test_every_program_of_the_page_is_run_here():
    assert sorted(BLOCKS) == sorted(f"{name}.py" for name in [*SERVICES, "script"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for name, block in BLOCKS.items():
        (folder / name).write_text(block, encoding="utf-8")
    return folder


def environment(folder: Path, name: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    return {**env, "JOBS_DATA_DIR": str(folder / f"data-{name}"), "PYTHONUNBUFFERED": "1"}


def answers(served: HttpProcess) -> bool:
    assert served.process.running
    with suppress(httpx.TransportError):
        return served.client.get("/api/v1/tasks").status_code == 200
    return False


@pytest.fixture(scope="module")
def serve(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Each service of the page, started once."""
    ledger = Processes(tmp_path_factory.mktemp("logs"))
    running: dict[str, HttpProcess] = {}

    def start(name: str) -> HttpProcess:
        if name not in running:
            port = free_port()
            command = [PROGRAMS / "uvicorn", f"{name}:app", "--port", str(port)]
            process = ledger.start(command, name=name, env=environment(folder, name), cwd=folder)
            running[name] = HttpProcess(process, f"http://127.0.0.1:{port}")
            wait_until(partial(answers, running[name]), f"{name} answers", timeout=60)
        return running[name]

    yield start
    with redirect_stdout(StringIO()):
        ledger.end_all()
    for served in running.values():
        served.client.close()


def test_a_service_has_what_it_was_built_with(serve: Serve):
    client = serve("my_service").client
    assert client.get("/health").json()["status"] == "healthy"
    assert client.get("/metrics").status_code == 200
    assert client.get("/api/v1/queues/jobs").json()["max_concurrency"] == 5


def test_a_task_has_a_call_of_its_own(serve: Serve):
    client = serve("drawing").client
    job_id = client.post("/draw", json={"size": {"width": 3, "height": 4}}).json()["job_id"]
    assert client.get(f"/draw/{job_id}/result", headers={"Prefer": "wait=20"}).json()["result"] == 12
    assert {"submit_draw", "get_draw_result"} <= set(
        re.findall(r'"operationId":"(\w+)"', client.get("/openapi.json").text)
    )


def test_a_script_submits_to_the_service_that_runs(serve: Serve, folder: Path):
    serve("drawing")
    env = environment(folder, "drawing")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


def test_an_endpoint_hands_a_function_over_and_waits_for_it(serve: Serve):
    client = serve("orders").client
    answer = client.post("/orders/7/pack").json()
    assert answer["result"] == "order 7 is packed"
    assert client.get(f"/api/v1/jobs/{answer['job']}").json()["task"] == "orders.pack"


def test_a_record_of_ones_own_is_told_of_the_result(serve: Serve):
    client = serve("tagged").client
    job_id = client.post("/api/v1/compute", json={"duration": 0.1}).json()["job_id"]
    assert client.get(f"/api/v1/jobs/{job_id}", headers={"Prefer": "wait=20"}).json()["size"] == len("42")
