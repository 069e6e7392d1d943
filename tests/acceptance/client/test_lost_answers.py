"""Answers that are lost on the way: nothing is lost, doubled, or wrongly taken for refused (contract, section 8)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import BaseModel

from celery_jobs.client import InvalidTaskTransition, JobManager, Unreachable
from tests.support.proxy import Proxy, says
from tests.support.sdk import JOBLIB, claimed, fresh, soon, workers_seen
from tests.support.sdk_tasks import Double

pytestmark = pytest.mark.xdist_group("client-lost-answers")

TIMEOUT_SECONDS = 3.0
SETTINGS = soon(TIMEOUT_SECONDS)
SECONDS = 10  # "in seconds": a deadline with slack


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """Between a worker of the test and the service."""
    with Proxy(int(urlsplit(url).port or 0)).serving() as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy) -> Iterator[JobManager]:
    """A worker and submitter behind the proxy."""
    with JobManager(f"http://127.0.0.1:{proxy.port}") as behind:
        yield behind


class Counted(BaseModel):
    """Counts its runs."""

    def run(self, ran: list[int]) -> int:
        ran.append(1)
        return len(ran)


@pytest.mark.parametrize("status", ["running", "completed"])
def test_a_report_whose_answer_was_lost_counts(
    client: httpx.Client,
    behind: JobManager,
    proxy: Proxy,
    jobs: JobManager,
    status: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, ran = fresh(Counted), list[int]()
    behind.register(made)
    submitted = jobs.submit(made(), room="room_1")
    task = next(behind.listen())
    proxy.lose_answer(says(f'"status":"{status}"'))
    with caplog.at_level(logging.WARNING, "celery_jobs.client"):
        task.run(ran)
    assert proxy.cuts == 1
    assert ran == [1]
    assert (submitted.refresh().status, submitted.result) == ("completed", 1)
    assert "dropped" not in caplog.text


def test_a_failure_whose_answer_was_lost_counts(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    task = claimed(behind, Double, number=3)
    proxy.lose_answer(says('"status":"failed"'))
    behind.fail(task, "no")
    assert proxy.cuts == 1
    assert jobs.task(task.id).error == "no"


def test_a_task_that_was_cancelled_while_the_answer_was_lost_is_refused(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    task = claimed(behind, Double, number=3)
    behind.start(task)
    proxy.refuse()
    canceller = threading.Timer(0.2, lambda: (jobs.task(task.id).cancel(), proxy.accept()))
    canceller.start()
    with pytest.raises(InvalidTaskTransition):
        behind.complete(task, 1)
    canceller.join()
    assert jobs.task(task.id).status == "cancelled"


def test_a_claim_whose_answer_was_lost_comes_again_and_runs_once(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    made, ran = fresh(Counted), list[int]()
    behind.register(made)
    submitted = jobs.submit(made(), room="room_1")
    proxy.lose_answer(says("/tasks/claim"))
    next(behind.listen()).run(ran)
    assert proxy.cuts == 1
    assert ran == [1]
    assert submitted.refresh().status == "completed"


def test_a_submit_whose_answer_was_lost_gives_one_task(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    made = fresh(Double)
    behind.register(made)
    proxy.lose_answer(says("POST /v1/joblib/rooms/"))
    submitted = behind.submit(made(number=1), room="only_once")
    assert proxy.cuts == 1
    page = client.get(f"{JOBLIB}/rooms/only_once/tasks").json()
    assert [task["id"] for task in page["items"] if task["job_name"].endswith(made.__name__)] == [submitted.id]


def test_a_registration_whose_answer_was_lost_is_repeated(
    client: httpx.Client, behind: JobManager, proxy: Proxy
) -> None:
    proxy.lose_answer(says("PUT /v1/joblib/rooms/"))
    behind.register(made := fresh(Double))
    assert proxy.cuts == 1
    assert workers_seen(client)[behind.worker_id] == [f"@global:modifiers:{made.__name__}"]


def test_a_stream_outlives_cut_connections(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    made, ran = fresh(Counted), list[int]()
    behind.register(made)
    stream = behind.listen()
    thread = threading.Thread(target=lambda: [task.run(ran) for task in stream])
    thread.start()
    try:
        for round_ in range(1, 4):
            proxy.cut()
            submitted = jobs.submit(made(), room="room_1")
            assert submitted.wait(SECONDS).result == round_
    finally:
        stream.stop()
        thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_report_gives_up_after_its_time(
    behind: JobManager, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("celery_jobs.client.retry.HURRIED_PATIENCE_SECONDS", 1.0)
    task = claimed(behind, Double, number=3)
    behind._hurry.begin()
    proxy.refuse()
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        behind.start(task)
    with caplog.at_level(logging.WARNING, "celery_jobs.client"):
        task.run()
    assert "is dropped:" in caplog.text
    assert time.monotonic() - begun < SECONDS


def test_a_wait_for_a_task_outlives_an_outage(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    made = fresh(Double)
    jobs.register(made)
    submitted = behind.submit(made(number=8), room="room_1")
    proxy.refuse()
    threading.Timer(1, proxy.accept).start()
    next(jobs.listen()).run()
    assert submitted.wait(SECONDS).result == 16


def test_stop_works_while_the_server_says_nothing(behind: JobManager, proxy: Proxy) -> None:
    behind.register(fresh(Double))
    proxy.silence()
    stream = behind.listen()
    threading.Timer(0.5, stream.stop).start()
    begun = time.monotonic()
    assert list(stream) == []
    assert time.monotonic() - begun < 1.5
    proxy.speak()
