"""Submitting (contract, section 3): checked arguments, options, and the same key twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import good
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack

NewStack = Callable[..., Stack]

TYPED = "/api/v1/tasks/sample.typed"


@shared(EMBEDDED, PREFORK)
def test_tasks_are_listed_with_their_schemas(stack: Stack) -> None:
    tasks = {task["name"]: task for task in good(stack.jobs.client.get("/api/v1/tasks"), 200).json()}
    assert {"compute", "sample.noop", "sample.typed", "sample.hold_async"} <= set(tasks)
    assert all(set(task) == {"name", "queue", "schema", "coroutine", "cancel_mode"} for task in tasks.values())
    plain, coroutine = tasks["sample.typed"], tasks["sample.hold_async"]
    assert (plain["queue"], plain["coroutine"], plain["cancel_mode"]) == ("jobs", False, "wait")
    assert (coroutine["coroutine"], coroutine["cancel_mode"]) == (True, "interrupt")
    assert tasks["sample.elsewhere"]["queue"] == "other"
    schema = plain["schema"]
    assert (schema["type"], schema["required"]) == ("object", ["count"])
    assert set(schema["properties"]) == {"count", "ratio", "flag", "words"}
    assert schema["properties"]["count"]["type"] == "integer"
    compute = tasks["compute"]["schema"]["properties"]["duration"]
    assert (compute["minimum"], compute["maximum"]) == (0.1, 60)
    assert not any(name.startswith("celery.") for name in tasks)


@shared(EMBEDDED, PREFORK, SQLITE)
def test_arguments_reach_the_task_as_they_were_sent(stack: Stack) -> None:
    sent: dict[str, Any] = {"count": 2**53, "ratio": 2, "flag": True, "words": ["é", "\u2028", "🦀", ""]}
    job = stack.jobs.submit("typed", **sent)
    stack.jobs.wait(job, "completed")
    assert stack.jobs.result(job)["result"] == sent
    job = stack.jobs.submit("typed", count=0)
    stack.jobs.wait(job, "completed")
    assert stack.jobs.result(job)["result"] == {"count": 0, "ratio": 1.0, "flag": False, "words": None}


@shared(EMBEDDED)
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"count": "3"}', "count"),
        (b'{"count": true}', "count"),
        (b'{"count": 1.5}', "count"),
        (b'{"count": null}', "count"),
        (b"{}", "count"),
        (b'{"count": 1, "ratio": NaN}', ""),
        (b'{"count": 1, "ratio": Infinity}', ""),
        (b'{"count": 1, "ratio": true}', "ratio"),
        (b'{"count": 1, "flag": 1}', "flag"),
        (b'{"count": 1, "words": ["a", 2]}', "words"),
        (b'{"count": 1, "cuont": 2}', "cuont"),
        (b"[1]", ""),
        (b"1", ""),
        (b"null", ""),
        (b'{"count": 1', ""),
        (b'{"count": 1}}', ""),
        (b"\xff\xfe", ""),
        (b"", "count"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(stack: Stack, body: bytes, field: str) -> None:
    before = len(stack.jobs.list())
    answer = stack.jobs.client.post(TYPED, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"] == "urn:servicekit:error:validation-failed"
    assert problem["errors"]
    if field:
        assert any(field in map(str, each["loc"]) or field in each["msg"] for each in problem["errors"])
    assert len(stack.jobs.list()) == before


@shared(EMBEDDED, PREFORK)
def test_an_unknown_task_is_not_found(stack: Stack) -> None:
    for name in ("nosuch", "celery.backend_cleanup", "os.system", "sample"):
        answer = stack.jobs.client.post(f"/api/v1/tasks/{name}", json={})
        assert answer.status_code == 404, name
        assert answer.json()["type"] == "urn:servicekit:error:not-found"


@shared(EMBEDDED, PREFORK, SQLITE)
def test_priority_and_tags_are_in_the_record(stack: Stack) -> None:
    params = [("priority", "100"), ("tag", "b"), ("tag", "a"), ("tag", "with, comma")]
    job = stack.jobs.submit("note", params=params)
    record = stack.jobs.wait(job, "completed")
    assert (record["priority"], sorted(record["tags"])) == (100, ["a", "b", "with, comma"])
    assert stack.jobs.record(stack.jobs.submit("note"))["priority"] == 0
    assert stack.jobs.record(stack.jobs.submit("important"))["priority"] == 7
    assert stack.jobs.record(stack.jobs.submit("important", params={"priority": 0}))["priority"] == 0


@shared(EMBEDDED)
@pytest.mark.parametrize("query", ["priority=101", "priority=-1", "priority=x", "priority=1.5", "priority=", "prio=1"])
def test_options_that_are_wrong_are_refused(stack: Stack, query: str) -> None:
    answer = stack.jobs.client.post(f"/api/v1/tasks/sample.note?{query}", json={})
    assert answer.status_code == 422
    assert answer.json()["errors"]


@shared(EMBEDDED, PREFORK, SQLITE)
def test_the_same_key_and_body_give_the_first_job_again(stack: Stack) -> None:
    client, headers = stack.jobs.client, {"Idempotency-Key": stack.name()}
    first = good(client.post(TYPED, json={"count": 1, "flag": False}, headers=headers), 202)
    again = good(client.post(TYPED, json={"flag": False, "count": 1}, headers=headers), 202)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    other = client.post(TYPED, json={"count": 2}, headers=headers)
    assert other.status_code == 422
    assert other.json()["type"] == "urn:servicekit:error:validation-failed"
    elsewhere = good(client.post("/api/v1/tasks/sample.note", json={}, headers=headers), 202)
    assert elsewhere.json()["job_id"] != first.json()["job_id"]
    stack.jobs.wait(first.json()["job_id"], "completed")
    late = good(client.post(TYPED, json={"count": 1, "flag": False}, headers=headers), 202)
    assert late.json()["job_id"] == first.json()["job_id"]
    stack.jobs.delete(first.json()["job_id"])
    fresh = good(client.post(TYPED, json={"count": 1, "flag": False}, headers=headers), 202)
    assert fresh.json()["job_id"] != first.json()["job_id"]
    assert "idempotent-replayed" not in fresh.headers


@own(PREFORK)
def test_two_api_processes_agree_about_a_key(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=2).start()
    stack.api()
    keys = [f"key-{number}" for number in range(20)]

    def submit(number: int) -> tuple[str, str, bool]:
        key = keys[number // 6]
        answer = good(
            stack.apis[number % 2].client.post(
                "/api/v1/tasks/sample.note", json={"mark": key}, headers={"Idempotency-Key": key}
            ),
            202,
        )
        return key, answer.json()["job_id"], "idempotent-replayed" in answer.headers

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(submit, range(120)))
    for key in keys:
        jobs = {job for name, job, _ in answers if name == key}
        assert len(jobs) == 1
        assert [replayed for name, _, replayed in answers if name == key].count(False) == 1
    stack.jobs.wait_idle()
    assert sorted(line.mark for line in stack.journal.starts()) == sorted(keys)
    assert len(stack.jobs.list()) == len(keys)


@shared(EMBEDDED)
def test_compute_is_a_task_like_the_others(stack: Stack) -> None:
    job = stack.jobs.submit("compute", duration=0.1, params={"tag": "mine"})
    assert stack.jobs.wait(job, "completed")["tags"] == ["mine"]
    assert stack.jobs.result(job)["result"] == 42
