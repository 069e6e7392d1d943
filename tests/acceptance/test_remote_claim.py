"""Claiming (contract, section 8; case C18): the oldest task of the worker's jobs, and exactly one worker gets it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import good
from tests.support.remote import Json, Remote, fresh, refused
from tests.support.stack import EMBEDDED, PREFORK, Stack

pytestmark = pytest.mark.xdist_group("remote-claim")


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param, worker=False)


@pytest.fixture
def serving(served: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(served.apis[0].client).serving()


def drain(worker: Remote) -> list[str]:
    """All that this worker can claim, one after the other."""
    claimed: list[str] = []
    while (task := worker.claim()) is not None:
        claimed.append(task["id"])
    return claimed


def test_tasks_of_all_its_jobs_are_claimed_in_the_order_of_submission(serving: tuple[Remote, str]) -> None:
    worker, first = serving
    second = worker.register("Second", room=fresh())
    third = worker.register(fresh("Third"), room="@global")
    order = [(first, worker.room), (second["full_name"], second["room_id"]), (third["full_name"], fresh())]
    tasks: list[str] = []
    for number in (2, 0, 1, 1, 0, 2, 2, 1, 0, 0):
        name, room = order[number]
        tasks.append(worker.submit(name, room=room)["id"])
    assert drain(worker) == tasks


def test_a_worker_claims_only_tasks_of_its_own_jobs(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    foreign, foreign_job = worker.serving()
    worker.submit(foreign_job, room=foreign.room)
    task = worker.submit(job)
    assert drain(worker) == [task["id"]]
    assert len(drain(foreign)) == 1


def test_there_may_be_no_task(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    assert good(worker.ask(), 200).json() == {"task": None}
    worker.at_state(job, "completed")
    worker.at_state(job, "cancelled")
    assert worker.claim() is None
    assert worker.worker().claim() is None  # it serves nothing yet


def test_the_body_of_a_claim_may_be_left_out(served: Stack) -> None:
    me = Remote(served.apis[0].client)
    job = me.register()["full_name"]
    bodies: list[Json] = [{}, {"json": {}}, {"json": {"worker_id": None}}, {"content": b""}]
    for options in bodies:
        task = me.submit(job)
        answer = good(me.send("POST", "/tasks/claim", **options), 200).json()
        assert (answer["task"]["id"], answer["task"]["worker_id"]) == (
            task["id"],
            me.client.get("/v1/me").json()["id"],
        )


@pytest.mark.parametrize("body", [{"nosuch": 1}, {"worker_id": 1}, [], "x", None])
def test_a_claim_with_another_body_is_refused(serving: tuple[Remote, str], body: object) -> None:
    worker, job = serving
    task = worker.submit(job)
    if body is None:
        answer = worker.send("POST", "/tasks/claim", content=b"{", headers={"Content-Type": "application/json"})
    else:
        answer = worker.send("POST", "/tasks/claim", json=body)
    assert refused(answer, 422, "validation-failed")["errors"][0]["loc"][0] == "body"
    assert worker.task(task)["status"] == "pending"


def test_a_worker_that_nobody_knows_claims_nothing(serving: tuple[Remote, str]) -> None:
    worker, _ = serving
    stranger = Remote(worker.client, worker_id=fresh("worker"))
    refused(stranger.ask(), 404, "worker-not-found")
    refused(stranger.ask(wait=50), 404, "worker-not-found")
    good(worker.leave(), 204)
    refused(worker.ask(wait=50), 404, "worker-not-found")


def test_an_extra_worker_claims_for_itself(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    second = worker.worker()
    second.register()
    tasks = [worker.submit(job) for _ in range(2)]
    assert (second.claim_one()["worker_id"], worker.claim_one()["worker_id"]) == (second.worker_id, worker.worker_id)
    assert [worker.task(task)["worker_id"] for task in tasks] == [second.worker_id, worker.worker_id]


def test_a_worker_may_hold_several_tasks(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    tasks = [worker.submit(job) for _ in range(3)]
    assert [worker.claim_one()["id"] for _ in tasks] == [task["id"] for task in tasks]
    for task in reversed(tasks):
        worker.report(task, "running")
        worker.report(task, "completed")


def test_of_claims_for_one_task_at_the_same_moment_one_wins(twins: Stack) -> None:
    first, job = Remote(twins.apis[0].client).serving()
    workers = [first, *(first.worker() for _ in range(7))]
    for worker in workers[1:]:
        worker.register()
    workers = [worker.at(twins.apis[number % 2].client) for number, worker in enumerate(workers)]
    for _ in range(5):
        task = first.submit(job)
        barrier = threading.Barrier(len(workers))

        def claim(worker: Remote, barrier: threading.Barrier = barrier) -> Json | None:
            barrier.wait()
            return worker.claim()

        with ThreadPoolExecutor(len(workers)) as pool:
            won = [each for each in pool.map(claim, workers) if each is not None]
        assert [each["id"] for each in won] == [task["id"]]
        assert first.task(task)["worker_id"] == won[0]["worker_id"]


@pytest.mark.parametrize(("many", "claimers"), [(80, 10), pytest.param(1000, 40, marks=pytest.mark.slow)])
def test_each_of_many_tasks_is_claimed_once(twins: Stack, many: int, claimers: int) -> None:
    """Case C18 (c): every claimer reports what it got as done, and nobody's report is refused."""
    first, job = Remote(twins.apis[0].client).serving()
    with ExitStack() as opened:
        clients = [
            opened.enter_context(httpx.Client(base_url=twins.apis[number % 2].url, timeout=60, verify=False))
            for number in range(claimers)
        ]
        workers = [first.at(client).worker() for client in clients]
        for worker in workers:
            worker.register()
        submitted = many_submitted(first, job, many)

        def work(worker: Remote) -> list[str]:
            done: list[str] = []
            while (task := worker.claim()) is not None:
                worker.report(task, "running")
                worker.report(task, "completed", result=len(done))
                done.append(task["id"])
            return done

        with ThreadPoolExecutor(claimers) as pool:
            claimed = [task for done in pool.map(work, workers) for task in done]
    assert Counter(claimed) == Counter(submitted)
    assert first.tasks(status="completed", limit=1)["total"] == many
    for api in twins.apis:
        assert "Traceback" not in api.process.log
        assert "database is locked" not in api.process.log


def many_submitted(worker: Remote, job: str, many: int) -> list[str]:
    """The ids of so many tasks, submitted by ten clients."""
    with ThreadPoolExecutor(10) as pool:
        return [task["id"] for task in pool.map(lambda _: worker.submit(job), range(many))]


@pytest.mark.parametrize("many", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_tasks_are_claimed_in_the_order_in_which_one_client_submits_them(twins: Stack, many: int) -> None:
    """Case C18 (d): it submits as fast as it can while the claimer is at work."""
    claimer, job = Remote(twins.apis[1].client).serving()
    submitter = claimer.at(twins.apis[0].client)

    def claim_all() -> list[str]:
        claimed: list[str] = []
        while len(claimed) < many:
            task = claimer.claim(wait=20)
            assert task is not None, f"{len(claimed)} of {many} came"
            claimed.append(task["id"])
        return claimed

    with ThreadPoolExecutor(1) as thread:
        claiming = thread.submit(claim_all)
        submitted = [submitter.submit(job)["id"] for _ in range(many)]
        assert claiming.result(timeout=60) == submitted
    assert claimer.claim() is None
