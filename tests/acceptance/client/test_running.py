"""A claimed task runs, and whatever comes of it is reported (contract, section 8)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import httpx
import pytest
from pydantic import BaseModel, field_validator

from celery_jobs.client import ClaimedTask, JobManager
from tests.support.sdk import JOBLIB, Rotate, claimed, fresh, task_seen

pytestmark = pytest.mark.xdist_group("client-running")

SETTINGS = {"JOBS_MAX_RESULT_BYTES": "10000"}


def ended(jobs: JobManager, task_class: type[Any], *args: Any, **fields: Any) -> dict[str, Any]:
    """The same, run; as everybody sees it then."""
    task = claimed(jobs, task_class, **fields)
    task.run(*args)
    return jobs.task(task.id).model_dump()


def test_a_task_runs_with_its_payload_and_the_arguments(jobs: JobManager, client: httpx.Client) -> None:
    task = claimed(jobs, Rotate, angle=90)
    assert (task.room_id, task.payload, task.job_name) == ("room_1", {"angle": 90}, next(iter(jobs)))
    assert task.created_at.utcoffset() is not None
    task.run("vis", 2)
    seen = task_seen(client, task.id)
    assert (seen["status"], seen["result"], seen["error"]) == ("completed", [90, "vis", 2], None)
    assert seen["worker_id"] == jobs.worker_id
    assert seen["created_at"] <= seen["started_at"] <= seen["completed_at"]
    assert task.status == "completed"


def test_a_coroutine_may_be_the_run(jobs: JobManager) -> None:
    class Fetch(BaseModel):
        async def run(self) -> str:
            return "fetched"

    assert ended(jobs, Fetch)["result"] == "fetched"


class Raises(BaseModel):
    def run(self) -> None:
        raise ValueError("no\nangle")


class Bytes(BaseModel):
    def run(self) -> Any:
        return {"raw": b"bytes"}


class Long(BaseModel):
    def run(self) -> Any:
        return "x" * 20_000


class Huge(BaseModel):
    def run(self) -> Any:
        return "x" * 2_000_000


class NoRun(BaseModel):
    pass


class Picky(BaseModel):
    angle: float = 0.0

    @field_validator("angle")
    @classmethod
    def right(cls, angle: float) -> float:
        if angle < 0 and cls.refuses:
            raise ValueError("must not be negative")
        return angle

    refuses: ClassVar[bool] = False

    def run(self) -> None: ...


@pytest.mark.parametrize(
    ("task_class", "reason"),
    [
        (Raises, "ValueError: no angle"),
        (Bytes, "ResultNotJson: bytes cannot be written as JSON; return plain data or a Pydantic model"),
        (Long, "JOBS_MAX_RESULT_BYTES"),
        (Huge, "the result was refused: 413"),
        (NoRun, "has no method run"),
    ],
)
def test_a_task_that_cannot_be_completed_fails_with_the_reason(
    jobs: JobManager, task_class: type[BaseModel], reason: str
) -> None:
    seen = ended(jobs, task_class)
    assert seen["status"] == "failed"
    assert reason in seen["error"]
    assert "\n" not in seen["error"]
    assert seen["result"] is None


def test_a_payload_that_the_class_refuses_fails_the_task(jobs: JobManager) -> None:
    task = claimed(jobs, Picky, angle=-1)
    jobs[task.job_name].refuses = True  # pyright: ignore[reportAttributeAccessIssue]
    task.run()
    error = jobs.task(task.id).error
    assert error is not None
    assert error.endswith("angle: Value error, must not be negative")


def test_a_task_without_a_class_here_fails(jobs: JobManager, client: httpx.Client) -> None:
    name = fresh(Rotate).__name__
    job = {"category": "modifiers", "name": name, "worker_id": jobs.worker_id}
    client.put(f"{JOBLIB}/rooms/@global/jobs", json=job).raise_for_status()
    client.post(f"{JOBLIB}/rooms/room_1/tasks/@global:modifiers:{name}", json={}).raise_for_status()
    task = next(jobs.listen())
    task.run()
    assert jobs.task(task.id).error == f"the worker has no class for @global:modifiers:{name}"


class Ends(BaseModel):
    by: ClassVar[type[BaseException]]

    def run(self) -> None:
        raise self.by


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_when_the_task_is_failed(jobs: JobManager, kind: type[BaseException]) -> None:
    Ends.by = kind
    task = claimed(jobs, Ends)
    with pytest.raises(kind):
        task.run()
    seen = jobs.task(task.id)
    assert seen.status == "failed"
    assert seen.error == f"{kind.__name__} (the worker ended while the task ran)"


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, MemoryError])
def test_whatever_else_is_raised_fails_the_task_alone(jobs: JobManager, kind: type[BaseException]) -> None:
    Ends.by = kind
    assert ended(jobs, Ends)["error"] == kind.__name__


def test_a_task_that_was_cancelled_meanwhile_is_dropped(jobs: JobManager, caplog: pytest.LogCaptureFixture) -> None:
    class Cancels(BaseModel):
        def run(self, task: ClaimedTask) -> str:
            jobs.task(task.id).cancel()
            return "too late"

    task = claimed(jobs, Cancels)
    with caplog.at_level(logging.WARNING, "celery_jobs.client"):
        task.run(task)
    assert f"task {task.id}" in caplog.text
    assert "is dropped: 409" in caplog.text
    assert task.cancel_requested
    seen = jobs.task(task.id)
    assert (seen.status, seen.result) == ("cancelled", None)


def test_a_task_that_was_cancelled_before_its_start_does_not_run(jobs: JobManager) -> None:
    class Runs(BaseModel):
        ran: ClassVar[list[str]] = []

        def run(self) -> None:
            self.ran.append("ran")

    task = claimed(jobs, Runs)
    jobs.task(task.id).cancel()
    task.run()
    assert Runs.ran == []
    assert jobs.task(task.id).status == "cancelled"
