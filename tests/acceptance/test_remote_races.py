"""Two things at the same moment (contract, sections 2 and 8): one wins, and the answers and the record say which."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.jobs import PREFIX, Jobs, good
from tests.support.remote import Json, Remote, fresh, refused
from tests.support.stack import Stack

ROUNDS = 12

Call = Callable[[], httpx.Response]


@pytest.fixture
def serving(twins: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(twins.apis[0].client).serving()


def at_once(*calls: Call) -> list[httpx.Response]:
    """What each answers when all are made at the same moment."""
    barrier = threading.Barrier(len(calls))

    def made(call: Call) -> httpx.Response:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(made, calls))


def codes(answers: list[httpx.Response]) -> list[int]:
    return [answer.status_code for answer in answers]


def settled(worker: Remote, task: Json) -> Json:
    """The task, which must not change any more, as both APIs show it."""
    found = worker.task(task)
    record = Jobs(worker.client).record(task["id"])
    assert record["status"].replace("canceled", "cancelled") == found["status"]
    assert worker.task(task) == found
    return found


def test_a_cancel_and_a_completion_have_one_winner(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    other = Remote(twins.apis[1].client)
    for _ in range(ROUNDS):
        task = worker.at_state(job, "running")
        finish, cancel = at_once(
            lambda task=task: worker.patch(task, "completed", result=1),
            lambda task=task: other.patch(task, "cancelled"),
        )
        assert sorted(codes([finish, cancel])) == [200, 409]
        assert settled(worker, task)["status"] == ("completed" if finish.status_code == 200 else "cancelled")


def test_a_cancel_over_the_other_api_and_a_completion_have_one_winner(
    twins: Stack, serving: tuple[Remote, str]
) -> None:
    worker, job = serving
    for _ in range(ROUNDS):
        task = worker.at_state(job, "running")
        finish, cancel = at_once(
            lambda task=task: worker.patch(task, "completed", result=1),
            lambda task=task: twins.apis[1].client.post(f"{PREFIX}/{task['id']}/$cancel"),
        )
        assert codes([finish, cancel]) in ([200, 409], [409, 202])
        assert settled(worker, task)["status"] == ("completed" if finish.status_code == 200 else "cancelled")


def test_the_same_report_twice_at_once_counts_once(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    there = worker.at(twins.apis[1].client)
    for _ in range(ROUNDS):
        task = worker.at_state(job, "claimed")
        assert sorted(codes(at_once(*(lambda w=w, t=task: w.patch(t, "running") for w in (worker, there))))) == [
            200,
            409,
        ]
        answers = at_once(
            *(lambda w=w, t=task, n=n: w.patch(t, "completed", result=n) for n, w in enumerate([worker, there]))
        )
        assert sorted(codes(answers)) == [200, 409]
        assert settled(worker, task)["result"] == codes(answers).index(200)


def test_a_claim_and_a_cancel_agree(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    other = Remote(twins.apis[1].client)
    for _ in range(ROUNDS):
        task = worker.submit(job)
        claim, cancel = at_once(worker.ask, lambda task=task: other.patch(task, "cancelled"))
        assert codes([claim, cancel]) == [200, 200]
        found = settled(worker, task)
        assert found["status"] == "cancelled"
        if claim.json()["task"] is not None:  # then it came first, and its worker hears of the cancel
            assert found["worker_id"] == worker.worker_id
            assert worker.told_to_cancel() == [task["id"]]
            assert worker.patch(task, "running").status_code == 409
        else:
            assert worker.told_to_cancel() == []


def test_a_claim_and_a_deletion_agree(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    for _ in range(ROUNDS):
        task = worker.submit(job)
        claim, delete = at_once(worker.ask, lambda task=task: twins.apis[1].client.delete(f"{PREFIX}/{task['id']}"))
        assert codes([claim, delete]) == [200, 204]
        assert worker.look(task).status_code == 404
        assert worker.patch(task, "running").status_code == 404
        assert worker.claim() is None


def test_a_worker_that_leaves_while_it_claims_leaves_nothing_behind(twins: Stack, serving: tuple[Remote, str]) -> None:
    heir, job = serving
    for _ in range(ROUNDS):
        worker = heir.worker()
        worker.register()
        task = heir.submit(job)
        claim, leave = at_once(worker.at(twins.apis[1].client).ask, worker.leave)
        assert leave.status_code == 204
        assert claim.status_code in (200, 404)
        assert heir.claim_one()["id"] == task["id"]
        heir.report(task, "running")
        heir.report(task, "completed")


def test_a_worker_that_leaves_while_it_reports_leaves_nothing_running(
    twins: Stack, serving: tuple[Remote, str]
) -> None:
    heir, job = serving
    for _ in range(ROUNDS):
        worker = heir.worker()
        worker.register()
        task = worker.at_state(job, "claimed")
        report, leave = at_once(lambda w=worker, t=task: w.at(twins.apis[1].client).patch(t, "running"), worker.leave)
        assert leave.status_code == 204
        assert report.status_code in (200, 404, 409)
        status = settled(heir, task)["status"]
        assert status == ("failed" if report.status_code == 200 else "pending")
        if status == "pending":
            assert heir.claim_one()["id"] == task["id"]


def test_a_job_whose_last_worker_leaves_while_somebody_submits_strands_no_task(twins: Stack) -> None:
    """Either the job has gone first (404), or the task keeps the job and waits for whoever comes."""
    for _ in range(ROUNDS):
        worker, job = Remote(twins.apis[0].client).serving()
        submitter = worker.at(twins.apis[1].client)
        post, leave = at_once(lambda s=submitter, j=job: s.post(j, json={"payload": {}}), worker.leave)
        assert leave.status_code == 204
        assert post.status_code in (202, 404)
        heir = worker.worker()
        joined = heir.put()
        if post.status_code == 202:
            assert joined.status_code == 200
            assert heir.claim_one()["id"] == post.json()["id"]
        else:
            assert joined.status_code == 201
            assert heir.claim() is None


def test_a_job_whose_last_worker_leaves_while_another_joins_stays_whole(twins: Stack) -> None:
    for _ in range(ROUNDS):
        worker, job = Remote(twins.apis[0].client).serving()
        heir = worker.at(twins.apis[1].client).worker()
        join, leave = at_once(heir.put, worker.leave)
        assert leave.status_code == 204
        assert join.status_code in (200, 201)
        assert heir.job(job).json()["workers"] == [heir.worker_id]
        task = heir.submit(job)
        assert heir.claim_one()["id"] == task["id"]


def test_of_registrations_at_the_same_moment_one_creates_and_the_others_find_it(twins: Stack) -> None:
    workers = [Remote(twins.apis[number % 2].client).worker(fresh()) for number in range(4)]
    schema: Json = {"type": "object"}
    for _ in range(10):
        name = fresh("Race")
        answers = at_once(*(lambda each=each, name=name: each.put(name, "@global", schema=schema) for each in workers))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201], [a.text for a in answers]
        assert len({answer.json()["id"] for answer in answers}) == 1
        job = workers[0].job(answers[0].json()["full_name"]).json()
        assert sorted(job["workers"]) == sorted(str(each.worker_id) for each in workers)


def test_of_two_schemas_at_the_same_moment_one_wins(twins: Stack) -> None:
    workers = [Remote(api.client).worker(fresh()) for api in twins.apis]
    for number in range(10):
        schemas = [{"title": "a"}, {"title": "b"}]
        calls = [
            lambda w=w, s=s, number=number: w.put(f"Race{number}", workers[0].room, schema=s)
            for w, s in zip(workers, schemas, strict=True)
        ]
        answers = at_once(*calls)
        assert sorted(answer.status_code for answer in answers) == [201, 409]
        won = next(place for place, answer in enumerate(answers) if answer.status_code == 201)
        refused(answers[1 - won], 409, "schema-conflict")
        job = workers[0].job(f"{workers[0].room}:modifiers:Race{number}").json()
        assert (job["schema"], job["workers"]) == (schemas[won], [workers[won].worker_id])


def test_twenty_submissions_with_one_key_at_the_same_moment_make_one_task(
    twins: Stack, serving: tuple[Remote, str]
) -> None:
    worker, job = serving
    here = [worker.at(api.client) for api in twins.apis]
    key = {"Idempotency-Key": "same"}
    calls = [lambda n=n: here[n % 2].post(job, json={"payload": {"n": 1}}, headers=key) for n in range(20)]
    answers = [good(answer, 202) for answer in at_once(*calls)]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 19
    assert worker.tasks()["total"] == 1


def test_a_process_that_submitted_before_notices_that_a_job_went_and_came_back_with_another_schema(
    twins: Stack,
) -> None:
    first: Json = {"properties": {"angle": {"type": "integer"}}, "required": ["angle"]}
    second: Json = {"properties": {"angle": {"type": "string"}}, "required": ["angle"]}
    worker, job = Remote(twins.apis[0].client).serving(schema=first)
    there = worker.at(twins.apis[1].client)
    for api in (worker, there):  # both have looked the job up
        worker.report(api.submit(job, {"angle": 1}), "cancelled")
    good(worker.leave(), 204)
    refused(there.post(job, json={"payload": {"angle": 1}}), 404, "job-not-found")
    refused(there.post(job, json={"payload": {"angle": "1"}}), 404, "job-not-found")
    successor = worker.worker()
    good(successor.put(schema=second), 201)
    # the first process still knows the old one only
    assert worker.submit(job, {"angle": "1"})["status"] == "pending"
    refused(worker.post(job, json={"payload": {"angle": 1}}), 422, "payload-invalid")
    refused(there.post(job, json={"payload": {"angle": 1}}), 422, "payload-invalid")
    assert there.submit(job, {"angle": "2"})["queue_position"] == 2
    assert [successor.claim_one()["payload"] for _ in range(2)] == [{"angle": "1"}, {"angle": "2"}]
