"""The SDK's JobManager before a running service: registering, running, reporting, submitting (contract, section 8)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import httpx
import pytest
from pydantic import BaseModel, field_validator

from celery_jobs.client import (
    ClaimedTask,
    Forbidden,
    InvalidCategory,
    InvalidRoomId,
    InvalidTaskTransition,
    JobManager,
    JobNotFound,
    PayloadInvalid,
    ResultNotJson,
    SchemaConflict,
    TaskNotFound,
    TaskStream,
    ValidationFailed,
)
from tests.support.sdk import JOBLIB, fresh, task_seen, workers_seen
from tests.support.stack import EMBEDDED, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("client-sdk")


@pytest.fixture(scope="module")
def served(start_stack: Callable[..., Stack]) -> Stack:
    """A service for all tests of this file."""
    return start_stack(EMBEDDED, JOBS_MAX_RESULT_BYTES="10000")


@pytest.fixture
def client(served: Stack) -> httpx.Client:
    """A client of the service that knows nothing of the SDK."""
    return served.apis[0].client


@pytest.fixture
def url(served: Stack) -> str:
    return served.apis[0].url


@pytest.fixture
def jobs(url: str) -> Iterator[JobManager]:
    """A worker and submitter."""
    with JobManager(url) as jobs:
        yield jobs


class Rotate(BaseModel):
    angle: float = 0.0

    def run(self, *args: Any) -> list[Any]:
        return [self.angle, *args]


def claimed(jobs: JobManager, task_class: type[Any], **fields: Any) -> ClaimedTask:
    """A task of a fresh class, registered, submitted and claimed."""
    made = fresh(task_class)
    jobs.register(made)
    submitted = jobs.submit(made(**fields), room="room_1")
    task = next(jobs.listen())
    assert task.id == submitted.id
    return task


def ended(jobs: JobManager, task_class: type[Any], *args: Any, **fields: Any) -> dict[str, Any]:
    """The same, run; as everybody sees it then."""
    task = claimed(jobs, task_class, **fields)
    task.run(*args)
    return jobs.task(task.id).model_dump()


# --- registering


def test_a_manager_is_a_mapping_of_what_it_registered(jobs: JobManager, client: httpx.Client) -> None:
    class Scale(Rotate):
        category: ClassVar[str] = "analysis"

    made, other = fresh(Scale), fresh(Rotate)
    assert jobs.register(made) is made
    assert jobs.register(other, room="room_1") is other
    names = [f"@global:analysis:{made.__name__}", f"room_1:modifiers:{other.__name__}"]
    assert list(jobs) == names
    assert (len(jobs), jobs[names[0]], jobs[names[1]]) == (2, made, other)
    assert names[0] in jobs
    job = client.get(f"{JOBLIB}/rooms/room_1/jobs/{names[1]}").json()
    assert job["schema"] == other.model_json_schema()
    assert job["workers"] == [jobs.worker_id]
    assert workers_seen(client)[jobs.worker_id] == sorted(names)


def test_register_is_a_decorator_with_and_without_a_room(jobs: JobManager) -> None:
    @jobs.register
    class Plain(BaseModel):
        angle: float = 0.0

    @jobs.register(room="room_123")
    class Private(BaseModel):
        category: str = "selections"

    @jobs.register()
    class Empty(BaseModel):
        pass

    names = ["@global:modifiers:Plain", "room_123:selections:Private", "@global:modifiers:Empty"]
    assert dict(jobs) == dict(zip(names, [Plain, Private, Empty], strict=True))


def test_registering_again_is_fine_and_with_another_schema_an_error(jobs: JobManager, url: str) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    jobs.register(made)

    class Other(BaseModel):
        angle: str = "none"

    Other.__name__ = made.__name__
    for manager in (jobs, other := JobManager(url)):
        with pytest.raises(SchemaConflict, match=made.__name__):
            manager.register(Other)
    assert jobs[f"@global:modifiers:{made.__name__}"] is made
    assert len(other) == 0
    other.close()


def test_what_the_server_does_not_allow_is_an_error(jobs: JobManager) -> None:
    class Odd(BaseModel):
        category: ClassVar[str] = "nonsense"

    with pytest.raises(InvalidCategory, match="nonsense") as refused:
        jobs.register(Odd)
    assert refused.value.status == 400
    assert refused.value.type == "/v1/problems/invalid-category"
    with pytest.raises(InvalidRoomId):
        jobs.register(Rotate, room="a:b")
    generic = type("a:b", (Rotate,), {})
    with pytest.raises(ValidationFailed):
        jobs.register(generic)
    assert len(jobs) == 0


def test_each_manager_is_a_worker_of_its_own_until_it_is_closed(url: str, client: httpx.Client) -> None:
    first, second = JobManager(url), JobManager(url)
    ids = {first.worker_id, second.worker_id}
    assert len(ids) == 2
    assert ids <= set(workers_seen(client))
    first.close()
    second.close()
    assert not ids & set(workers_seen(client))


def test_an_api_manager_of_ones_own_is_enough(url: str, client: httpx.Client) -> None:
    class Vis:
        def __init__(self) -> None:
            self.http = httpx.Client(base_url=url)
            self.jobs = JobManager(self)

        def get_headers(self) -> dict[str, str]:
            return {}

        @property
        def base_url(self) -> str:
            return url + "/"

    vis = Vis()
    task = claimed(vis.jobs, Rotate, angle=90)
    task.run("vis")
    assert task_seen(client, task.id)["result"] == [90, "vis"]
    vis.jobs.close()
    assert vis.http.get("/readyz").status_code == 200  # a client that is not the manager's own stays open


# --- running


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


# --- reports of one's own


def test_reports_of_a_handler_of_ones_own(jobs: JobManager, client: httpx.Client) -> None:
    task = claimed(jobs, NoRun)
    jobs.start(task)
    assert task_seen(client, task.id)["status"] == "running"
    with pytest.raises(ResultNotJson):
        jobs.complete(task, {1, 2})
    assert task_seen(client, task.id)["status"] == "running"
    jobs.complete(task, {"atoms": 3})
    assert task_seen(client, task.id)["result"] == {"atoms": 3}
    assert task.ended


@pytest.mark.parametrize(("error", "said"), [("no atoms", "no atoms"), (KeyError("x"), "KeyError: 'x'")])
def test_a_handler_may_fail_a_task_that_it_did_not_start(jobs: JobManager, error: Any, said: str) -> None:
    task = claimed(jobs, NoRun)
    jobs.fail(task, error)
    assert (jobs.task(task.id).status, jobs.task(task.id).error) == ("failed", said)


def test_refused_reports_raise_and_change_nothing(jobs: JobManager, url: str) -> None:
    task = claimed(jobs, NoRun)
    jobs.complete(task, 1)
    for report in (lambda: jobs.start(task), lambda: jobs.complete(task, 2), lambda: jobs.fail(task, "no")):
        with pytest.raises(InvalidTaskTransition):
            report()
    assert jobs.task(task.id).result == 1
    other = claimed(jobs, NoRun)
    with JobManager(url) as stranger:
        other_as_stranger = other.model_copy(update={"worker_id": stranger.worker_id})
        with pytest.raises(Forbidden):
            stranger.start(other_as_stranger)
    assert jobs.task(other.id).status == "claimed"


def test_a_heartbeat_says_what_was_cancelled(jobs: JobManager) -> None:
    task = claimed(jobs, NoRun)
    jobs.start(task)
    jobs.heartbeat()
    assert not task.cancel_requested
    jobs.task(task.id).cancel()
    jobs.heartbeat()
    assert task.cancel_requested


def test_a_report_on_one_task_says_what_else_was_cancelled(jobs: JobManager) -> None:
    one, other = claimed(jobs, NoRun), claimed(jobs, NoRun)
    jobs.start(one)
    jobs.start(other)
    jobs.task(one.id).cancel()
    jobs.complete(other)
    assert one.cancel_requested
    assert not other.cancel_requested


# --- listening


def test_a_task_is_claimed_at_once_whatever_the_interval(jobs: JobManager) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    submitted: list[float] = []

    def submit() -> None:
        submitted.append(time.monotonic())
        jobs.submit(made(), room="room_1")

    threading.Timer(0.5, submit).start()
    next(jobs.listen(interval=60))
    assert time.monotonic() - submitted[0] < 1


def test_stop_ends_a_wait_and_loses_no_task(jobs: JobManager) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    stream = jobs.listen()
    threading.Timer(0.5, stream.stop).start()
    begun = time.monotonic()
    assert list(stream) == []
    assert time.monotonic() - begun < 1.5
    begun = time.monotonic()
    threading.Timer(0.5, lambda: jobs.submit(made(angle=1), room="room_1")).start()
    next(jobs.listen()).run()  # the request of the stopped stream still waits, and may be the one to get it
    assert time.monotonic() - begun < 2


def test_threads_may_share_a_manager(jobs: JobManager, url: str) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    ran: list[str] = []
    streams = [jobs.listen() for _ in range(4)]

    def work(stream: TaskStream) -> None:
        for task in stream:
            ran.append(task.id)
            task.run()

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    with JobManager(url) as submitter:
        submitted = [submitter.submit(made(angle=number), room="room_1") for number in range(40)]
        assert [task.wait(20).result for task in submitted] == [[number] for number in range(40)]
    for stream in streams:
        stream.stop()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert sorted(ran) == sorted(task.id for task in submitted)


def test_a_worker_that_the_server_forgot_registers_again_and_goes_on(jobs: JobManager, client: httpx.Client) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    lost = jobs.worker_id
    came: list[ClaimedTask] = []
    stream = jobs.listen()
    thread = threading.Thread(target=lambda: came.append(next(stream)))
    thread.start()
    client.delete(f"{JOBLIB}/workers/{lost}").raise_for_status()
    name = next(iter(jobs))
    wait_until(lambda: [name] in workers_seen(client).values(), "it registers again", 30)
    submitted = jobs.submit(made(angle=2), room="room_1")
    thread.join(30)
    came[0].run()
    assert submitted.refresh().result == [2]
    assert jobs.worker_id != lost


def test_a_heartbeat_of_a_worker_that_the_server_forgot_registers_again(jobs: JobManager, client: httpx.Client) -> None:
    task = claimed(jobs, Rotate)
    jobs.start(task)
    lost = jobs.worker_id
    client.delete(f"{JOBLIB}/workers/{lost}").raise_for_status()
    jobs.heartbeat()
    assert task.cancel_requested  # it has failed with its worker
    assert workers_seen(client)[jobs.worker_id] == list(jobs)
    with pytest.raises(InvalidTaskTransition):
        jobs.complete(task, 1)
    assert jobs.task(task.id).status == "failed"


def test_registering_after_the_server_forgot_the_worker_registers_all(jobs: JobManager, client: httpx.Client) -> None:
    jobs.register(fresh(Rotate))
    client.delete(f"{JOBLIB}/workers/{jobs.worker_id}").raise_for_status()
    jobs.register(fresh(Rotate))
    assert workers_seen(client)[jobs.worker_id] == sorted(jobs)


def test_closing_gives_back_what_was_claimed(url: str, client: httpx.Client) -> None:
    with JobManager(url) as jobs, JobManager(url) as other:
        task = claimed(jobs, Rotate)
        other.register(jobs[task.job_name])
        jobs.close()
        assert next(other.listen()).id == task.id


# --- submitting


def test_a_submitted_task_can_be_waited_for(jobs: JobManager) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    submitted = jobs.submit(made(angle=3), room="room_1")
    assert (submitted.status, submitted.queue_position, submitted.ended) == ("pending", 1, False)
    with pytest.raises(TimeoutError, match="still pending after"):
        submitted.wait(0.3)
    threading.Timer(0.5, lambda: next(jobs.listen()).run()).start()
    assert submitted.wait(20) is submitted
    assert (submitted.status, submitted.result) == ("completed", [3])
    assert jobs.task(submitted.id).result == [3]
    assert submitted.wait(0).status == "completed"


def test_the_same_key_gives_the_same_task(jobs: JobManager) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    first, again, other = (jobs.submit(made(), room="room_1", idempotency_key=key) for key in ("a", "a", "b"))
    assert first.id == again.id != other.id


def test_what_cannot_be_submitted_is_an_error(jobs: JobManager) -> None:
    made = fresh(Rotate)
    with pytest.raises(JobNotFound):
        jobs.submit(made(), room="room_1")
    jobs.register(made, room="room_2")
    with pytest.raises(JobNotFound):  # another room's
        jobs.submit(made(), room="room_1", job_room="room_2")
    assert jobs.submit(made(), room="room_2", job_room="room_2").room_id == "room_2"
    with pytest.warns(UserWarning, match="angle"), pytest.raises(PayloadInvalid) as refused:
        jobs.submit(made.model_construct(angle="wide"), room="room_2", job_room="room_2")
    assert refused.value.errors[0]["loc"] == ["body", "payload", "angle"]
    with pytest.raises(TaskNotFound):
        jobs.task("nonsense")
    with pytest.raises(TaskNotFound):
        jobs.task("00000000-0000-0000-0000-000000000000")


def test_a_task_that_has_ended_cannot_be_cancelled(jobs: JobManager) -> None:
    task = claimed(jobs, Rotate)
    task.run()
    with pytest.raises(InvalidTaskTransition):
        jobs.task(task.id).cancel()
