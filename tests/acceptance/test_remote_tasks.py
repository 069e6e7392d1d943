"""Looking at remote tasks, and submitting them twice or with a wait (contract, sections 3 and 8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import good
from tests.support.remote import STATES, Json, Remote, fresh, refused, timestamp, ulid_of
from tests.support.stack import EMBEDDED, PREFORK, Stack

pytestmark = pytest.mark.xdist_group("remote-tasks")

SLACK_SECONDS = 5.0


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param, worker=False)


@pytest.fixture
def serving(served: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(served.apis[0].client).serving()


def ids(page: Json) -> list[str]:
    return [task["id"] for task in page["items"]]


def positions(worker: Remote, tasks: list[Json]) -> list[int | None]:
    return [worker.task(task)["queue_position"] for task in tasks]


def test_a_task_tells_each_of_its_times_once_it_has_come(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    submitted = worker.submit(job)
    claimed = worker.claim_one()
    assert (claimed["status"], claimed["started_at"], claimed["completed_at"]) == ("claimed", None, None)
    assert (claimed["worker_id"], claimed["queue_position"]) == (worker.worker_id, None)
    running = worker.report(submitted, "running")
    assert (running["status"], running["completed_at"], running["worker_id"]) == ("running", None, worker.worker_id)
    done = worker.report(submitted, "completed", result={"turned": 90})
    moments = [timestamp(done[name]) for name in ("created_at", "started_at", "completed_at")]
    assert moments == sorted(moments)
    assert abs(moments[2] - time.time()) < SLACK_SECONDS
    assert (done["created_at"], done["started_at"]) == (submitted["created_at"], running["started_at"])
    assert (done["result"], done["error"], done["worker_id"]) == ({"turned": 90}, None, worker.worker_id)
    assert worker.task(submitted) == {name: value for name, value in done.items() if name != "cancelled_task_ids"}


@pytest.mark.parametrize(
    "task",
    ["nosuch", "", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01563e3a-b5d3-d676-4c61-efb99302bd5b", "%00", "a%2Fb", "8" * 26],
)
def test_a_task_that_nobody_submitted_is_unknown(serving: tuple[Remote, str], task: str) -> None:
    worker, _ = serving
    if task not in ("", "a%2Fb"):  # those are other paths
        refused(worker.look(task, wait=50), 404, "task-not-found")
        refused(worker.patch(task, "running"), 404, "task-not-found")
    else:
        assert worker.look(task).status_code in (404, 405)


def test_a_path_takes_either_spelling_of_the_id(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.submit(job)
    for spelling in (task["id"].upper(), ulid_of(task["id"]), ulid_of(task["id"]).lower()):
        assert worker.task(spelling) == task
    worker.claim_one()
    assert worker.report(ulid_of(task["id"]), "running")["id"] == task["id"]


def test_the_tasks_of_a_room_are_listed_newest_first_and_filtered_by_status(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    made = [worker.at_state(job, state) for state in reversed(STATES)]  # pending last, or it would be claimed
    assert worker.tasks()["items"] == [worker.task(task) for task in reversed(made)]
    for task in made:
        assert ids(worker.tasks(status=task["status"])) == [task["id"]]
    pages = [worker.tasks(limit=2, offset=offset) for offset in (0, 2, 4, 6)]
    assert [task for page in pages for task in ids(page)] == ids(worker.tasks())
    assert {(page["total"], page["limit"]) for page in pages} == {(6, 2)}
    for status in ("nosuch", "canceled", ""):
        answer = worker.send("GET", f"/rooms/{worker.room}/tasks", params={"status": status})
        assert refused(answer, 422, "validation-failed")["errors"][0]["loc"] == ["query", "status"]
    assert worker.tasks(fresh())["items"] == []


def test_a_pending_task_knows_its_place_among_those_of_its_job(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    other = worker.register("Other")["full_name"]
    tasks = [worker.submit(job) for _ in range(4)]
    assert worker.submit(other)["queue_position"] == 1
    assert positions(worker, tasks) == [1, 2, 3, 4]
    assert [task["queue_position"] for task in worker.tasks()["items"]] == [1, 4, 3, 2, 1]
    worker.claim_one()
    assert positions(worker, tasks) == [None, 1, 2, 3]
    worker.report(tasks[2], "cancelled")
    assert positions(worker, tasks) == [None, 1, None, 2]


def test_the_same_key_and_body_gives_the_first_task_again(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    other = worker.register("Other")["full_name"]
    key = {"Idempotency-Key": fresh("key")}
    first = good(worker.post(job, json={"payload": {"a": 1, "b": 2}}, headers=key), 202)
    again = good(worker.post(job, json={"payload": {"b": 2, "a": 1}}, headers=key), 202)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert (again.json(), again.headers["location"]) == (first.json(), first.headers["location"])
    different = worker.post(job, json={"payload": {"a": 2}}, headers=key)
    assert different.status_code == 422
    refused(different, 422, different.json()["type"].rpartition("/")[2])
    assert good(worker.post(other, json={"payload": {"a": 1, "b": 2}}, headers=key), 202).json()["job_name"] == other
    assert worker.tasks()["total"] == 2
    worker.claim_one()
    assert worker.post(job, json={"payload": {"a": 1, "b": 2}}, headers=key).json()["status"] == "claimed"


def test_a_submission_that_waits_answers_with_the_task_that_ended(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(
            worker.post, job, json={"payload": {}}, headers={"Prefer": "respond-async, wait=50"}, timeout=60
        )
        task = worker.claim(wait=20)
        assert task is not None
        worker.report(task, "running")
        assert not asked.done()
        worker.report(task, "completed", result=7)
        answer = good(asked.result(timeout=SLACK_SECONDS), 200)
    assert answer.json() == worker.task(task)
    assert (answer.json()["result"], answer.headers["preference-applied"]) == (7, "wait")
    assert answer.headers["location"].endswith(task["id"])


def test_a_submission_whose_task_takes_longer_answers_as_without(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    begun = time.monotonic()
    answer = good(worker.post(job, json={"payload": {}}, headers={"Prefer": "respond-async, wait=1"}), 202)
    assert 0.9 <= time.monotonic() - begun < 1 + SLACK_SECONDS
    assert "wait" in answer.headers["preference-applied"]
    assert (answer.json()["status"], "location" in answer.headers) == ("pending", True)
    at_once = good(worker.post(job, json={"payload": {}}, headers={"Prefer": "respond-async"}), 202)
    assert at_once.headers["preference-applied"] == "respond-async"
    assert "preference-applied" not in good(worker.post(job, json={"payload": {}}), 202).headers
