"""Celery tasks with a category (contract, section 8): jobs for every room, which Celery workers serve."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import PREFIX, Jobs, good
from tests.support.remote import Json, Remote, fresh, refused, timestamp, ulid_of
from tests.support.stack import EMBEDDED, PREFORK, THREADS, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("remote-celery-tasks")

KEYS = {
    "alice-key": {"identity": "alice"},
    "bob-key": {"identity": "bob"},
    "admin-key": {"identity": "root", "admin": True},
}
ROTATE, HOLD, HOLD_ASYNC, RAISE = (
    f"@global:{name}" for name in ("modifiers:Rotate", "selections:Hold", "analysis:HoldAsync", "modifiers:Raise")
)
SLACK_SECONDS = 5.0


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK, THREADS), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param, JOBS_IMPORTS="sample,rooms", JOBS_API_KEYS=json.dumps(KEYS))


@pytest.fixture
def alice(served: Stack) -> Iterator[Remote]:
    """In a room of the test's own."""
    yield Remote(served.apis[0].client, "alice-key")
    served.release_all()


@pytest.fixture
def bob(alice: Remote) -> Remote:
    return Remote(alice.client, "bob-key", room=alice.room)


@pytest.fixture
def admin(alice: Remote) -> Remote:
    return Remote(alice.client, "admin-key", room=alice.room)


@pytest.fixture
def jobs(served: Stack) -> Iterator[Jobs]:
    """The other API, as an admin sees it."""
    with httpx.Client(base_url=served.apis[0].url, headers={"X-API-Key": "admin-key"}, timeout=30) as client:
        yield Jobs(client)


def held(served: Stack, alice: Remote, job: str) -> tuple[Json, str]:
    """A task of alice's whose code is at work, and the name that releases it."""
    name = served.name()
    task = alice.submit(job, {"name": name})
    served.journal.wait_start(ulid_of(task["id"]))
    return task, name


def reaches(alice: Remote, task: Json, status: str) -> Json:
    """The task once it has this status."""
    wait_until(lambda: alice.task(task)["status"] == status, f"the task is {status}")
    return alice.task(task)


def test_it_is_listed_in_every_room_with_its_schema(alice: Remote, jobs: Jobs) -> None:
    listed = {job["full_name"]: job for job in alice.jobs()["items"]}
    assert {ROTATE, HOLD, HOLD_ASYNC, RAISE} == set(listed)
    assert {job["full_name"] for job in alice.jobs("@global")["items"]} == set(listed)
    rotate = listed[ROTATE]
    assert (rotate["room_id"], rotate["category"], rotate["name"]) == ("@global", "modifiers", "Rotate")
    tasks = {task["name"]: task for task in good(jobs.client.get("/api/v1/tasks"), 200).json()}
    assert rotate["schema"] == tasks["Rotate"]["schema"]
    assert "Ordinary" in tasks
    assert good(alice.job(ROTATE), 200).json() == rotate


def test_a_submission_runs_it_and_both_apis_show_it(alice: Remote, jobs: Jobs) -> None:
    answer = alice.post(ROTATE, json={"payload": {"angle": 90, "box": {"sides": [1]}}}, headers={"Prefer": "wait=20"})
    task = good(answer, 200).json()
    assert (task["status"], task["error"]) == ("completed", None)
    assert task["result"] == {"angle": 90, "axis": "z", "sides": [1]}
    assert (task["job_name"], task["room_id"], task["created_by_id"]) == (ROTATE, alice.room, "alice")
    assert task["payload"] == {"angle": 90, "box": {"sides": [1]}}
    moments = [timestamp(task[name]) for name in ("created_at", "started_at", "completed_at")]
    assert moments == sorted(moments)
    record = jobs.record(task["id"])
    assert (record["status"], record["submitted_by"], record["attempt"]) == ("completed", "alice", 1)
    assert record["task"] in ("Rotate", ROTATE)
    assert (record["queue"], record["worker"] is None) == ("jobs", False)
    assert jobs.result(task["id"])["result"] == task["result"]
    assert alice.tasks()["items"] == [{**task, "result": alice.tasks()["items"][0]["result"]}]


@pytest.mark.parametrize(
    ("payload", "field"),
    [({}, "angle"), ({"angle": "x"}, "angle"), ({"angle": True}, "angle"), ({"angle": 1, "axis": "w"}, "axis")],
)
def test_a_payload_is_checked_against_its_arguments(alice: Remote, payload: Json, field: str) -> None:
    [fault] = refused(alice.post(ROTATE, json={"payload": payload}), 422, "payload-invalid")["errors"]
    assert fault["loc"][:2] == ["body", "payload"]
    assert field in [*fault["loc"], *fault["msg"].replace("'", " ").split()]
    assert alice.tasks()["total"] == 0


def test_a_payload_with_an_unknown_argument_is_refused(alice: Remote) -> None:
    refused(alice.post(ROTATE, json={"payload": {"angle": 1, "nosuch": 1}}), 422, "payload-invalid")
    refused(alice.post(ROTATE, json={"payload": {"angle": 1, "box": {"sides": ["x"]}}}), 422, "payload-invalid")


def test_a_failure_is_told_with_its_reason(alice: Remote, jobs: Jobs) -> None:
    task = good(alice.post(RAISE, json={"payload": {}}, headers={"Prefer": "wait=20"}), 200).json()
    assert (task["status"], task["error"]) == ("failed", "ValueError: no angle")
    assert jobs.record(task["id"])["error"] == task["error"]


def test_a_wait_ends_with_the_celery_task(served: Stack, alice: Remote) -> None:
    task, name = held(served, alice, HOLD)
    assert alice.task(task, wait=1)["status"] == "running"
    served.journal.release(name)
    assert alice.task(task, wait=50)["status"] == "completed"


def test_its_place_is_known_while_it_waits(alice: Remote, jobs: Jobs) -> None:
    jobs.change_queue(paused=True)
    tasks = [alice.submit(ROTATE, {"angle": number}) for number in range(3)]
    assert [alice.task(task)["queue_position"] for task in tasks] == [1, 2, 3]
    jobs.change_queue(paused=False)
    for task in tasks:
        assert reaches(alice, task, "completed")["queue_position"] is None


def test_cancelling_what_waits_ends_it_and_its_code_never_runs(served: Stack, alice: Remote, jobs: Jobs) -> None:
    jobs.change_queue(paused=True)
    task = alice.submit(ROTATE, {"angle": 1})
    assert alice.report(task, "cancelled")["status"] == "cancelled"
    jobs.change_queue(paused=False)
    other = alice.submit(ROTATE, {"angle": 2})
    reaches(alice, other, "completed")
    assert jobs.status(task["id"]) == "canceled"
    assert served.journal.starts(ulid_of(task["id"])) == []
    refused(alice.patch(task, "cancelled"), 409, "invalid-task-transition")


def test_cancelling_a_coroutine_interrupts_it(served: Stack, alice: Remote) -> None:
    task, _ = held(served, alice, HOLD_ASYNC)
    assert alice.report(task, "cancelled")["status"] in ("running", "cancelled")
    assert reaches(alice, task, "cancelled")["completed_at"] is not None
    assert served.journal.wait_end(ulid_of(task["id"])).how == "CancelledError"


def test_a_plain_function_runs_on_until_it_returns(served: Stack, alice: Remote, jobs: Jobs) -> None:
    task, name = held(served, alice, HOLD)
    assert alice.report(task, "cancelled")["status"] == "running"
    assert (alice.task(task)["status"], jobs.status(task["id"])) == ("running", "canceling")
    served.journal.release(name)
    reaches(alice, task, "cancelled")
    assert jobs.status(task["id"]) == "canceled"


def test_only_its_submitter_or_an_admin_cancels_it(served: Stack, alice: Remote, bob: Remote, admin: Remote) -> None:
    for allowed in (alice, admin):
        task, _ = held(served, alice, HOLD_ASYNC)
        refused(bob.patch(task, "cancelled"), 403, "forbidden")
        assert alice.task(task)["status"] == "running"
        allowed.report(task, "cancelled")
        reaches(alice, task, "cancelled")


def test_a_cancel_over_the_other_api_shows_here(served: Stack, alice: Remote, jobs: Jobs) -> None:
    task, name = held(served, alice, HOLD)
    assert jobs.cancel(task["id"]).json()["status"] == "canceling"
    assert alice.task(task)["status"] == "running"
    served.journal.release(name)
    assert jobs.wait(task["id"], "canceled")["finished_at"] == reaches(alice, task, "cancelled")["completed_at"]


def test_no_remote_worker_claims_it_or_reports_on_it(served: Stack, admin: Remote, jobs: Jobs) -> None:
    worker = admin.worker()
    worker.register(fresh("Mine"), room="@global")
    jobs.change_queue(paused=True)
    task = admin.submit(ROTATE, {"angle": 1})
    assert worker.claim() is None
    for status in ("running", "completed", "failed", "claimed", "pending"):
        assert worker.patch(task, status).status_code in (403, 409)
        refused(admin.patch(task, status), 409, "invalid-task-transition")
    assert admin.task(task)["status"] == "pending"
    jobs.change_queue(paused=False)
    assert reaches(admin, task, "completed")["worker_id"] != worker.worker_id


def test_no_remote_job_takes_its_name(alice: Remote, admin: Remote) -> None:
    schema = good(admin.job(ROTATE), 200).json()["schema"]
    for body in (schema, {}):
        answer = admin.put("Rotate", "@global", schema=body)
        assert answer.status_code == 409, answer.text
        refused(answer, 409, "schema-conflict")
    private = good(alice.put("Rotate"), 201).json()  # in a room of its own it is another job
    task = alice.submit(private["full_name"])
    assert alice.claim_one()["id"] == task["id"]


def test_a_retry_is_a_task_of_the_same_room(alice: Remote, jobs: Jobs) -> None:
    first = good(alice.post(ROTATE, json={"payload": {"angle": 7}}, headers={"Prefer": "wait=20"}), 200).json()
    second = good(jobs.client.post(f"{PREFIX}/{first['id']}/$retry"), 202).json()["job_id"]
    jobs.wait(second, "completed")
    task = alice.task(second)
    assert (task["job_name"], task["payload"], task["room_id"]) == (ROTATE, {"angle": 7}, alice.room)


def test_a_deleted_job_is_gone_here_too(alice: Remote, jobs: Jobs) -> None:
    task = good(alice.post(ROTATE, json={"payload": {"angle": 7}}, headers={"Prefer": "wait=20"}), 200).json()
    jobs.delete(task["id"])
    refused(alice.look(task), 404, "task-not-found")
    assert alice.tasks()["total"] == 0
