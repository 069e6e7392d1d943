"""Submitting from the SDK, and waiting for the end (contract, section 8)."""

from __future__ import annotations

import threading

import pytest

from celery_jobs.client import InvalidTaskTransition, JobManager, JobNotFound, PayloadInvalid, TaskNotFound
from tests.support.sdk import Rotate, claimed, fresh

pytestmark = pytest.mark.xdist_group("client-submitting")


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
