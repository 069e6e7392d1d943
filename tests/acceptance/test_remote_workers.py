"""Remote workers (contract, section 8): their heartbeats, their leaving, and the claims that they do not act upon."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import good
from tests.support.remote import Remote, fresh, refused, timestamp
from tests.support.stack import EMBEDDED, PREFORK, Stack
from tests.support.waiting import stays, wait_until

pytestmark = pytest.mark.xdist_group("remote-workers")

CLAIM_TIMEOUT_SECONDS = 2.0
SWEEPER_INTERVAL_SECONDS = 1.0
LOOK_SECONDS = 0.1  # each look is a request
GONE_BACK_SECONDS = CLAIM_TIMEOUT_SECONDS + SWEEPER_INTERVAL_SECONDS + 3


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    """Where a claim is taken back long before a worker counts as dead."""
    return start_stack(
        request.param,
        worker=False,
        ZNDRAW_JOBLIB_CLAIM_TIMEOUT_SECONDS=f"{CLAIM_TIMEOUT_SECONDS:g}",
        ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS=f"{SWEEPER_INTERVAL_SECONDS:g}",
    )


@pytest.fixture
def serving(served: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(served.apis[0].client).serving()


def heard(worker: Remote) -> float:
    """When the service last heard of this worker, as its list says."""
    items = worker.page(f"/rooms/{worker.room}/workers", limit=1000)["items"]
    return next(timestamp(each["last_heartbeat"]) for each in items if each["id"] == worker.worker_id)


def test_a_heartbeat_renews_the_worker(serving: tuple[Remote, str]) -> None:
    worker, _ = serving
    before = heard(worker)
    body = good(worker.beat(), 200).json()
    assert (body["id"], body["cancelled_task_ids"]) == (worker.worker_id, [])
    assert timestamp(body["last_heartbeat"]) == heard(worker) > before
    assert good(worker.send("PATCH", f"/workers/{worker.worker_id}", json={}), 200)


def test_claims_reports_and_registrations_renew_the_worker_too(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.submit(job)
    for act in (
        worker.claim,
        lambda: worker.report(task, "running"),
        worker.register,
        worker.claim,
    ):
        before = heard(worker)
        act()
        assert heard(worker) > before


def test_a_worker_that_nobody_knows_neither_beats_nor_leaves(serving: tuple[Remote, str]) -> None:
    worker, _ = serving
    for unknown in (fresh("worker"), "a b", "ä", "%", "x" * 300):
        refused(worker.beat(unknown), 404, "worker-not-found")
        refused(worker.leave(unknown), 404, "worker-not-found")


def test_workers_are_listed_with_what_they_serve(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    second = worker.register("Second")["full_name"]
    everywhere = worker.register(fresh("Everywhere"), room="@global")["full_name"]
    [item] = [each for each in worker.page("/workers", limit=1000)["items"] if each["id"] == worker.worker_id]
    assert set(item) == {"id", "last_heartbeat", "jobs"}
    assert sorted(item["jobs"]) == sorted([job, second, everywhere])
    assert worker.worker_id in [each["id"] for each in worker.page(f"/rooms/{worker.room}/workers")["items"]]
    elsewhere = Remote(worker.client).serving()[0]
    ids = [each["id"] for each in elsewhere.page(f"/rooms/{elsewhere.room}/workers", limit=1000)["items"]]
    assert elsewhere.worker_id in ids
    pages = [worker.page("/workers", limit=1, offset=offset) for offset in (0, 1)]
    assert pages[0]["total"] == pages[1]["total"] >= 2
    assert pages[0]["items"] != pages[1]["items"]


def test_several_workers_of_one_identity_are_several(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    second = worker.worker()
    second.register()
    assert second.worker_id != worker.worker_id
    mine, yours = worker.at_state(job, "running"), second.at_state(job, "running")
    good(second.leave(), 204)
    assert (worker.task(mine)["status"], worker.task(yours)["status"]) == ("running", "failed")
    assert worker.job(job).json()["workers"] == [worker.worker_id]


def test_what_a_leaving_worker_held_goes_back_or_fails_with_the_reason(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    second = worker.worker()
    second.register()
    running, claimed = second.at_state(job, "running"), second.at_state(job, "claimed")
    good(second.leave(), 204)
    lost = worker.task(running)
    assert (lost["status"], lost["completed_at"] is None) == ("failed", False)
    assert lost["error"].startswith("WorkerLost: ")
    back = worker.task(claimed)
    assert (back["status"], back["worker_id"], back["queue_position"]) == ("pending", None, 1)
    assert worker.claim_one()["id"] == claimed["id"]


def test_a_worker_that_has_left_is_nobody(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    second = worker.worker()
    second.register()
    task, claimed = worker.at_state(job, "running"), worker.at_state(job, "claimed")
    good(worker.leave(), 204)
    refused(worker.leave(), 404, "worker-not-found")
    refused(worker.beat(), 404, "worker-not-found")
    refused(worker.ask(), 404, "worker-not-found")
    refused(worker.put("Other"), 404, "worker-not-found")
    before = [second.task(each) for each in (task, claimed)]
    refused(worker.patch(task, "completed", result=1), 409, "invalid-task-transition")
    refused(worker.patch(claimed, "running"), 409, "invalid-task-transition")
    assert [second.task(each) for each in (task, claimed)] == before


def test_the_worker_of_an_identity_comes_back_with_its_next_registration(served: Stack) -> None:
    me = Remote(served.apis[0].client)
    good(me.put(), 201)
    identity = me.client.get("/v1/me").json()["id"]
    good(me.leave(identity), 204)
    refused(me.ask(), 404, "worker-not-found")
    assert good(me.put(), 201).json()["workers"] == [identity]
    assert me.claim() is None


def test_a_job_goes_with_its_last_worker_unless_something_waits(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    waiting = worker.register("Waiting")["full_name"]
    shared = worker.register("Shared")["full_name"]
    other = worker.worker()
    other.register("Shared")
    task = worker.submit(waiting)
    good(worker.leave(), 204)
    refused(other.job(job), 404, "job-not-found")
    assert good(other.job(shared), 200).json()["workers"] == [other.worker_id]
    assert good(other.job(waiting), 200).json()["workers"] == []
    assert other.task(task)["status"] == "pending"
    assert other.submit(waiting)["status"] == "pending"  # somebody may come and serve it
    other.register("Waiting")
    assert other.claim_one()["id"] == task["id"]


def test_a_job_without_a_worker_goes_once_its_last_task_has_ended(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.submit(job)
    good(worker.leave(), 204)
    stays(
        lambda: worker.job(job).status_code == 200,
        "a job with a task that waits",
        1.5 * SWEEPER_INTERVAL_SECONDS,
        interval=LOOK_SECONDS,
    )
    Remote(worker.client).report(task, "cancelled")
    wait_until(
        lambda: worker.job(job).status_code == 404, "the job goes", SWEEPER_INTERVAL_SECONDS + 4, interval=LOOK_SECONDS
    )


def test_a_claim_that_its_worker_does_not_act_upon_is_taken_back(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    second = worker.worker()
    second.register()
    task = worker.at_state(job, "claimed")

    def gone_back() -> bool:
        good(worker.beat(), 200)  # it is alive, and only never got the answer to its claim
        return worker.task(task)["status"] == "pending"

    stays(
        lambda: worker.task(task)["status"] == "claimed",
        "a young claim",
        CLAIM_TIMEOUT_SECONDS / 2,
        interval=LOOK_SECONDS,
    )
    wait_until(gone_back, "the claim is taken back", GONE_BACK_SECONDS, interval=LOOK_SECONDS)
    refused(worker.patch(task, "running"), 409, "invalid-task-transition")
    assert (worker.task(task)["worker_id"], worker.task(task)["created_at"]) == (None, task["created_at"])
    assert second.claim_one()["id"] == task["id"]
    refused(worker.patch(task, "running"), 403, "forbidden")
    second.report(task, "running")
    assert second.report(task, "completed", result=2)["worker_id"] == second.worker_id
    refused(worker.patch(task, "completed", result=1), 403, "forbidden")
    assert second.task(task)["result"] == 2


def test_a_claim_that_is_taken_back_comes_first_again(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    older, newer = worker.at_state(job, "claimed"), worker.submit(job)
    wait_until(
        lambda: worker.task(older)["status"] == "pending",
        "the claim is taken back",
        GONE_BACK_SECONDS,
        interval=LOOK_SECONDS,
    )
    assert [worker.claim_one()["id"] for _ in range(2)] == [older["id"], newer["id"]]


def test_a_task_that_runs_is_not_taken_back(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    stays(
        lambda: worker.task(task)["status"] == "running", "a running task", GONE_BACK_SECONDS - 2, interval=LOOK_SECONDS
    )
    assert worker.report(task, "completed")["status"] == "completed"
