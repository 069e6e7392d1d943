"""A remote task is also a job in `/api/v1/jobs` (contract, sections 1 to 4 and 8): one record, the same moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import PREFIX, Jobs, good
from tests.support.remote import Json, Remote, refused, ulid_of
from tests.support.stack import EMBEDDED, PREFORK, Stack
from tests.support.strict import problem

pytestmark = pytest.mark.xdist_group("remote-both-apis")


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param)


@pytest.fixture
def serving(served: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(served.apis[0].client).serving()


@pytest.fixture
def jobs(served: Stack) -> Jobs:
    return served.jobs


def test_the_record_of_a_remote_task(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.submit(job, {"angle": 1})
    record = jobs.record(task["id"])
    assert record["id"] == ulid_of(task["id"])
    me = jobs.client.get("/v1/me").json()["id"]
    assert (record["task"], record["queue"], record["worker"], record["submitted_by"]) == (job, None, None, me)
    assert (record["status"], record["attempt"], record["started_at"], record["finished_at"]) == (
        "pending",
        0,
        None,
        None,
    )
    assert (record["priority"], record["tags"], record["retry_of"], record["cancel_mode"]) == (0, [], None, None)
    assert record["submitted_at"] == task["created_at"]
    worker.claim_one()
    assert (jobs.status(task["id"]), jobs.record(task["id"])["attempt"]) == ("pending", 0)
    worker.report(task, "running")
    record = jobs.record(task["id"])
    assert (record["status"], record["attempt"], record["worker"]) == ("running", 1, worker.worker_id)
    done = worker.report(task, "completed", result={"x": 1})
    record = jobs.record(task["id"])
    assert (record["status"], record["error"], record["error_traceback"]) == ("completed", None, None)
    assert (record["started_at"], record["finished_at"]) == (done["started_at"], done["completed_at"])


def test_the_result_is_there_once_the_task_has_completed(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    unfinished = jobs.result(task["id"])
    assert (unfinished["job_id"], unfinished["status"], unfinished["result"]) == (ulid_of(task["id"]), "running", None)
    worker.report(task, "completed", result=[1, 2])
    assert jobs.result(task["id"])["result"] == [1, 2]


def test_every_path_takes_either_spelling(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.at_state(job, "completed")
    record = jobs.record(task["id"])
    for spelling in (task["id"], task["id"].upper(), record["id"], record["id"].lower()):
        assert jobs.record(spelling) == record
        assert jobs.result(spelling)["job_id"] == record["id"]
        assert worker.task(spelling) == task


def test_the_list_is_filtered_by_the_full_name(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    running, pending = worker.at_state(job, "running"), worker.submit(job)
    claimed = worker.claim_one()
    waiting = worker.submit(job)
    listed = jobs.list(task=job)
    assert [record["id"] for record in listed] == [ulid_of(each["id"]) for each in (waiting, pending, running)]
    assert claimed["id"] == pending["id"]
    assert [record["status"] for record in listed] == ["pending", "pending", "running"]
    found = jobs.list(task=job, status_filter="pending")
    assert [record["id"] for record in found] == [ulid_of(each["id"]) for each in (waiting, pending)]
    assert {ulid_of(each["id"]) for each in (running, pending, waiting)} <= {record["id"] for record in jobs.list()}
    assert [record["id"] for record in jobs.list(task=job, limit=1)] == [ulid_of(waiting["id"])]


def test_a_stream_of_the_job_tells_every_status(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.submit(job)
    with jobs.stream(task["id"], params={"poll_interval": 60}) as stream:
        assert stream.next().status == "pending"
        worker.claim_one()
        worker.report(task, "running")
        assert stream.until(lambda event: event.status == "running", "it runs", 5).id == "1-1-0"
        worker.report(task, "completed", result=1)
        assert [(event.status, event.id) for event in stream.rest()] == [("completed", "1-4-0")]
    statuses = [event.status for event in stream.seen if event.comment is None]
    assert statuses == ["pending", "running", "completed"]
    with jobs.stream(task["id"], last_event_id="0-0-0") as again:
        assert [event.status for event in again.rest()] == ["running", "completed"]
    answer = jobs.client.get(f"{PREFIX}/{task['id']}/$stream", headers={"Last-Event-ID": "1-4-0"})
    assert answer.status_code == 204


def test_the_stream_of_all_jobs_tells_every_status_of_a_remote_task(serving: tuple[Remote, str], served: Stack) -> None:
    worker, job = serving
    with served.apis[0].stream(f"{PREFIX}/$stream", params={"poll_interval": 60, "task": job}) as stream:
        for end in ("completed", "failed"):
            task = worker.at_state(job, end)
            stream.until(lambda event, end=end: event.status == end, f"it is {end}", 5)
            told = [each.data for each in stream.seen if each.data and each.data["id"] == ulid_of(task["id"])]
            assert [data["status"] for data in told] == ["pending", "running", end]


def test_a_worker_lost_to_a_stream_is_a_failure(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    with jobs.stream(task["id"], params={"poll_interval": 60}) as stream:
        assert stream.next().status == "running"
        good(worker.leave(), 204)
        [end] = stream.rest()
    assert end.data is not None
    assert (end.status, end.data["error"]) == ("failed", jobs.record(task["id"])["error"])


@pytest.mark.parametrize("state", ["pending", "claimed", "running"])
def test_a_cancel_ends_a_remote_task_at_once(serving: tuple[Remote, str], jobs: Jobs, state: str) -> None:
    worker, job = serving
    task = worker.at_state(job, state)
    record = jobs.cancel(task["id"]).json()
    assert (record["status"], record["finished_at"] is None) == ("canceled", False)
    told = worker.task(task)
    assert (told["status"], told["completed_at"]) == ("cancelled", record["finished_at"])
    assert worker.claim() is None
    assert worker.told_to_cancel() == ([] if state == "pending" else [task["id"]])
    refused(worker.patch(task, "completed" if state == "running" else "running"), 409, "invalid-task-transition")
    assert worker.task(task) == told
    assert worker.told_to_cancel() == []
    assert jobs.cancel(task["id"]).json() == record


def test_a_forced_cancel_is_like_a_plain_one(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    assert jobs.cancel(task["id"], force=True).json()["status"] == "canceled"


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_a_task_that_has_ended_is_not_cancelled(serving: tuple[Remote, str], jobs: Jobs, state: str) -> None:
    worker, job = serving
    task = worker.at_state(job, state)
    problem(jobs.cancel(task["id"], 409), 409)
    assert worker.task(task) == task


def test_a_cancel_over_one_api_shows_in_the_other(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    cancelled = worker.report(task, "cancelled")
    record = jobs.record(task["id"])
    assert (record["status"], record["finished_at"]) == ("canceled", cancelled["completed_at"])


@pytest.mark.parametrize("state", ["pending", "claimed", "running", "completed"])
def test_a_deleted_job_is_gone_in_both_apis(serving: tuple[Remote, str], jobs: Jobs, state: str) -> None:
    worker, job = serving
    task = worker.at_state(job, state)
    jobs.delete(task["id"])
    problem(jobs.client.get(f"{PREFIX}/{task['id']}"), 404)
    refused(worker.look(task), 404, "task-not-found")
    assert worker.tasks()["items"] == []
    assert worker.claim() is None
    refused(worker.patch(task, "completed"), 404, "task-not-found")


def test_the_stream_of_a_deleted_remote_task_ends(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    with jobs.stream(task["id"], params={"poll_interval": 60}) as stream:
        assert stream.next().status == "running"
        jobs.delete(task["id"])
        assert [event.data for event in stream.rest()][-1] == {"status": "deleted"}


def test_the_worker_is_told_when_its_running_task_is_deleted(serving: tuple[Remote, str], jobs: Jobs) -> None:
    """Deleting cancels first (section 2), so its code should stop as after a cancel."""
    worker, job = serving
    task = worker.at_state(job, "running")
    jobs.delete(task["id"])
    assert worker.told_to_cancel() == [task["id"]]
    refused(worker.patch(task, "completed"), 404, "task-not-found")
    assert worker.told_to_cancel() == []


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_a_retry_is_a_new_task_for_the_workers_of_the_job(serving: tuple[Remote, str], jobs: Jobs, state: str) -> None:
    worker, job = serving
    first = worker.submit(job, {"angle": [1, {"a": "ä"}]})
    if state != "cancelled":
        worker.claim_one()
        worker.report(first, "running")
    worker.report(first, state)
    answer = good(jobs.client.post(f"{PREFIX}/{first['id']}/$retry"), 202).json()
    record = jobs.record(answer["job_id"])
    assert (record["retry_of"], record["task"], record["queue"]) == (ulid_of(first["id"]), job, None)
    second = worker.claim_one()
    assert ulid_of(second["id"]) == answer["job_id"]
    assert (second["job_name"], second["room_id"], second["payload"]) == (job, worker.room, first["payload"])


@pytest.mark.parametrize("state", ["pending", "claimed", "running"])
def test_a_task_that_has_not_ended_is_not_retried(serving: tuple[Remote, str], jobs: Jobs, state: str) -> None:
    worker, job = serving
    task = worker.at_state(job, state)
    problem(jobs.client.post(f"{PREFIX}/{task['id']}/$retry"), 409)
    assert worker.tasks()["total"] == 1


def test_a_retry_of_a_job_that_has_gone_is_refused(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.at_state(job, "completed")
    good(worker.leave(), 204)
    answer = jobs.client.post(f"{PREFIX}/{task['id']}/$retry")
    assert answer.status_code in (404, 409), answer.text


def test_a_wait_for_the_job_ends_with_the_remote_task(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    task = worker.at_state(job, "completed")
    answer = good(jobs.client.get(f"{PREFIX}/{task['id']}", headers={"Prefer": "wait=20"}), 200)
    assert (answer.json()["status"], answer.headers["preference-applied"]) == ("completed", "wait")


def test_remote_tasks_leave_queues_and_celery_jobs_alone(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, job = serving
    before = jobs.queue()
    states: list[Json] = [worker.at_state(job, state) for state in ("running", "claimed")]
    worker.submit(job)
    assert jobs.queue() == before
    jobs.change_queue(max_concurrency=1, paused=False)
    assert worker.claim_one()["status"] == "claimed"  # no limit applies
    jobs.wait(jobs.submit("note", mark="still"), "completed")
    jobs.change_queue(max_concurrency=None)
    assert all(isinstance(queue["name"], str) for queue in good(jobs.client.get("/api/v1/queues"), 200).json())
    for path in ("/metrics", "/health", "/api/v1/jobs/$schema", "/api/v1/tasks"):
        good(jobs.client.get(path), 200)
    assert [worker.task(task)["status"] for task in states] == ["running", "claimed"]


def test_a_celery_job_is_no_remote_task(serving: tuple[Remote, str], jobs: Jobs) -> None:
    worker, _ = serving
    job = jobs.submit("note", mark="mine")
    jobs.wait(job, "completed")
    refused(worker.look(job), 404, "task-not-found")
    refused(worker.patch(job, "cancelled"), 404, "task-not-found")
