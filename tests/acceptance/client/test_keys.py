"""The SDK with API keys: who may do what is told at once (contract, sections 8 and 9)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import BaseModel

from celery_jobs.client import Forbidden, JobManager, Unauthorized
from tests.support.processes import Processes
from tests.support.sdk import SdkWorkers, fresh
from tests.support.stack import Stack

pytestmark = pytest.mark.xdist_group("client-keys")

KEYS = {
    "admin-key": {"identity": "root", "admin": True},
    "alice-key": {"identity": "alice"},
    "bob-key": {"identity": "bob"},
    "reader-key": {"identity": "reader", "scopes": ["read"]},
}
SETTINGS = {"JOBS_API_KEYS": json.dumps(KEYS)}
AT_ONCE = 3.0  # seconds; less than what an outage would be waited out


@pytest.fixture
def as_(served: Stack) -> Iterator[Callable[[str | None], JobManager]]:
    """A manager with somebody's key."""
    with ExitStack() as managers:
        yield lambda key: managers.enter_context(JobManager(served.apis[0].url, api_key=key))


class Add(BaseModel):
    one: int = 1
    other: int = 1

    def run(self) -> int:
        return self.one + self.other


def test_worker_and_submitter_may_be_different_people(as_: Callable[[str | None], JobManager]) -> None:
    worker, submitter = as_("alice-key"), as_("bob-key")
    made = fresh(Add)
    worker.register(made, room="room_1")
    submitted = submitter.submit(made(one=2), room="room_1", job_room="room_1")
    task = next(worker.listen())
    assert task.created_by_id == "bob"
    task.run()
    assert submitted.wait(10).result == 3


@pytest.mark.parametrize("key", [None, "wrong-key"])
def test_a_key_that_is_missing_or_wrong_is_an_error_at_once(as_: Callable[[str | None], JobManager], key: str) -> None:
    jobs, begun = as_(key), time.monotonic()
    for call in (
        lambda: jobs.register(fresh(Add)),
        lambda: next(jobs.listen()),
        jobs.heartbeat,
        lambda: jobs.submit(Add(), room="room_1"),
        jobs.serve,
    ):
        with pytest.raises(Unauthorized):
            call()
    assert time.monotonic() - begun < AT_ONCE


def test_what_the_key_does_not_allow_is_an_error_at_once(as_: Callable[[str | None], JobManager]) -> None:
    begun = time.monotonic()
    with pytest.raises(Forbidden):
        as_("alice-key").register(fresh(Add))  # for all rooms
    with pytest.raises(Forbidden):
        as_("reader-key").register(fresh(Add), room="room_1")
    with pytest.raises(Forbidden):
        next(as_("reader-key").listen())
    as_("admin-key").register(fresh(Add))
    assert time.monotonic() - begun < AT_ONCE


def test_another_persons_task_cannot_be_reported(as_: Callable[[str | None], JobManager]) -> None:
    alice, bob = as_("alice-key"), as_("bob-key")
    made = fresh(Add)
    alice.register(made, room="room_1")
    submitted = alice.submit(made(), room="room_1", job_room="room_1")
    task = next(alice.listen())
    with pytest.raises(Forbidden):
        bob.start(task)
    with pytest.raises(Forbidden):
        bob.task(task.id).cancel()
    task.run()
    assert submitted.refresh().result == 2


def test_the_command_takes_its_key_from_the_environment(served: Stack, processes: Processes, tmp_path: Path) -> None:
    sdk, url = SdkWorkers(processes, tmp_path, served.service.env), served.apis[0].url
    worker = sdk.command(url, JOBS_API_KEY="admin-key")
    worker.terminate()
    assert worker.wait() == 0
    for key, says in (("alice-key", "403"), ("", "401")):
        refused = sdk.command(url, ready=False, JOBS_API_KEY=key)
        assert refused.wait() == 2
        assert f"cannot start: {url}: {says}" in refused.log
        assert "Traceback" not in refused.log
