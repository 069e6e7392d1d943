"""`JOBS_SCHEDULER` with a class that is not ours: `api` and `up` serve it, without worker, broker or database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.service import Service

MODULE = (Path(__file__).parents[2] / "examples" / "custom_scheduler" / "main.py").read_text(encoding="utf-8")
NOWHERE: dict[str, Any] = {
    "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing",
}

NewService = Callable[..., Service]


@pytest.fixture
def service(new_service: NewService) -> Service:
    service = new_service(JOBS_MAX_CONCURRENCY="1", JOBS_SHUTDOWN_TIMEOUT_SECONDS="0")
    module = service.module("mine", MODULE)
    service.module("films", "from celery_jobs.tasks import job\n@job\ndef cut(at: int) -> int:\n    return at\n")
    service.env |= {"JOBS_SCHEDULER": f"{module}:MemoryScheduler", "JOBS_IMPORTS": "films"}
    return service


@pytest.mark.parametrize(("command", "env"), [("api", {}), ("up", NOWHERE)], ids=["api", "up, servers away"])
def test_it_is_served(service: Service, command: str, env: dict[str, Any]) -> None:
    served = service.api(**env) if command == "api" else service.up(**env)
    waited = served.client.post("/api/v1/tasks/films.cut", json={"at": 7}, headers={"Prefer": "wait=10"})
    assert (waited.status_code, waited.json()["result"]) == (200, 7)
    held, waiting = (served.client.post("/api/v1/compute", json={"duration": 60}).json()["poll_url"] for _ in "ab")
    assert served.client.get(held).json()["status"] == "running"
    assert served.client.get(waiting).json()["status"] == "pending", "JOBS_MAX_CONCURRENCY"
    assert served.client.get("/health").json()["status"] == "healthy"
    served.process.terminate()
    assert served.process.wait(5) == 0
    made = {path.name for path in service.folder.iterdir()} - {"mine.py", "films.py", "__pycache__"}
    assert made == set()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["worker"], ("mine:MemoryScheduler", "nothing for a Celery worker to do", "celery-jobs api")),
        (["api", "--workers", "2", "--port", "0"], ("--workers must be 1", "mine:MemoryScheduler")),
    ],
    ids=["worker", "several processes"],
)
def test_what_makes_no_sense_with_it_says_so(service: Service, arguments: list[str], says: tuple[str, ...]) -> None:
    for env in ({}, NOWHERE):  # with a broker and without
        ended = service.run(*arguments, **env)
        assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
        for word in says:
            assert word in ended.stderr


def test_one_that_cannot_be_made_without_arguments_says_so(service: Service) -> None:
    service.module("needy", MODULE + "\nclass Needy(MemoryScheduler):\n    def __init__(self, address): ...\n")
    ended = service.run("api", "--port", str(free_port()), JOBS_SCHEDULER="needy:Needy")
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert "needy:Needy" in ended.stderr
    assert "without arguments" in ended.stderr
