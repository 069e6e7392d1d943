"""Reports and heartbeats of handlers of one's own (contract, section 8; C19)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from celery_jobs.client import Forbidden, InvalidTaskTransition, JobManager, ResultNotJson
from tests.support.sdk import JOBLIB, Rotate, claimed, soon, task_seen, workers_seen
from tests.support.sdk_tasks import Double
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("client-reports")

TIMEOUT_SECONDS = 3.0
SETTINGS = soon(TIMEOUT_SECONDS)
SECONDS = 10  # a deadline with slack


class NoRun(BaseModel):
    pass


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


def test_a_handler_may_start_a_task_before_it_lets_it_run(jobs: JobManager) -> None:
    task = claimed(jobs, Rotate, angle=1)
    jobs.start(task)
    task.run("later")
    assert jobs.task(task.id).result == [1, "later"]


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


def test_a_late_report_is_refused_and_stays_so(client: httpx.Client, jobs: JobManager, url: str) -> None:
    with JobManager(url) as worker:
        task = claimed(worker, Double, number=3)
        worker.start(task)
        wait_until(lambda: jobs.task(task.id).status == "failed", "it is swept", TIMEOUT_SECONDS + SECONDS)
        for _ in range(2):
            with pytest.raises(InvalidTaskTransition):
                worker.complete(task, 1)
            worker.heartbeat()
        assert jobs.task(task.id).status == "failed"
        assert jobs.task(task.id).error is not None
        assert jobs.task(task.id).result is None


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
