"""Settings that remote work obeys (contract, sections 8 and 9): categories, retention, and values that cannot be."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import PREFIX, Jobs, good
from tests.support.remote import Remote, refused
from tests.support.service import Service
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]


@pytest.mark.parametrize("categories", ["moves, looks", pytest.param('["moves", "looks"]', marks=pytest.mark.slow)])
def test_the_categories_are_a_setting_in_either_spelling(new_stack: NewStack, categories: str) -> None:
    stack = new_stack(EMBEDDED, ZNDRAW_JOBLIB_ALLOWED_CATEGORIES=categories).start(worker=False)
    worker = Remote(stack.apis[0].client).worker()
    for category in ("moves", "looks"):
        assert good(worker.put(category=category), 201).json()["category"] == category
    refused(worker.put(category="modifiers"), 400, "invalid-category")
    refused(worker.put(category=""), 400, "invalid-category")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKER_TIMEOUT_SECONDS", "abc"),
        pytest.param("WORKER_TIMEOUT_SECONDS", "0", marks=pytest.mark.slow),
        pytest.param("SWEEPER_INTERVAL_SECONDS", "-1", marks=pytest.mark.slow),
        pytest.param("CLAIM_TIMEOUT_SECONDS", "0", marks=pytest.mark.slow),
        pytest.param("LONG_POLL_MAX_WAIT_SECONDS", "nan", marks=pytest.mark.slow),
        pytest.param("ALLOWED_CATEGORIES", '["a:b"]', marks=pytest.mark.slow),
        pytest.param("ALLOWED_CATEGORIES", "[1", marks=pytest.mark.slow),
    ],
)
def test_a_setting_that_cannot_be_stops_the_start_and_is_named(
    new_service: Callable[..., Service], name: str, value: str
) -> None:
    service = new_service(**{f"ZNDRAW_JOBLIB_{name}": value})
    done = service.run("up", "--port", "0", timeout=30)
    assert done.returncode != 0
    assert f"ZNDRAW_JOBLIB_{name}" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@own(EMBEDDED, PREFORK)
def test_what_has_ended_goes_in_time_and_what_has_not_stays(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, JOBS_RETENTION_SECONDS="1").start(worker=False)
    worker, job = Remote(stack.apis[0].client).serving()
    ended = [worker.at_state(job, state) for state in ("completed", "failed", "cancelled")]
    running, waiting = worker.at_state(job, "running"), worker.submit(job)
    wait_until(lambda: all(worker.look(task).status_code == 404 for task in ended), "they go", 20, interval=0.1)
    assert [task["id"] for task in worker.tasks()["items"]] == [waiting["id"], running["id"]]
    assert worker.job(job).status_code == 200
    assert worker.report(running, "completed")["status"] == "completed"
    assert Jobs(worker.client).status(waiting["id"]) == "pending"


@pytest.mark.slow
@own(EMBEDDED)
def test_a_key_is_free_again_once_its_task_is_deleted(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind).start(worker=False)
    worker, job = Remote(stack.apis[0].client).serving()

    def submit() -> httpx.Response:
        return good(worker.post(job, json={"payload": {"n": 1}}, headers={"Idempotency-Key": "k"}), 202)

    first = submit().json()["id"]
    assert submit().json()["id"] == first
    good(worker.client.delete(f"{PREFIX}/{first}"), 204)
    again = submit()
    assert (again.json()["id"] == first, "idempotent-replayed" in again.headers) == (False, False)
