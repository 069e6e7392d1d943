"""`$retry` (contract, section 3): a job that has ended runs again as another job with the same task and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ulid import ULID

from tests.acceptance.kinds import own, shared
from tests.support.jobs import PREFIX, good
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack

NewStack = Callable[..., Stack]


def again(stack: Stack, job: str, *statuses: int, params: Any = None, headers: Any = None) -> Any:
    return good(stack.jobs.client.post(f"{PREFIX}/{job}/$retry", params=params, headers=headers), *(statuses or (202,)))


@shared(EMBEDDED, PREFORK, SQLITE)
@pytest.mark.parametrize("ending", ["completed", "failed", "canceled"])
def test_a_job_that_ended_runs_again_as_another(stack: Stack, ending: str) -> None:
    if ending == "canceled":
        first = stack.jobs.submit("hold_async", name=stack.name(), params={"tag": "x", "priority": 4})
        stack.jobs.cancel(first)
    else:
        task, said = ("note", {"mark": "é"}) if ending == "completed" else ("raising", {"text": "no"})
        first = stack.jobs.submit(task, params={"tag": "x", "priority": 4}, **said)
    before = stack.jobs.wait(first, ending)
    answer = again(stack, first)
    second = answer.json()["job_id"]
    assert second != first
    assert answer.headers["location"] == answer.json()["poll_url"] == f"{PREFIX}/{second}"
    after = stack.jobs.record(second)
    assert (after["retry_of"], before["retry_of"]) == (first, None)
    assert all(after[name] == before[name] for name in ("task", "queue", "tags", "priority"))
    if ending != "canceled":
        stack.jobs.wait(second, ending)
        assert stack.jobs.result(second)["result"] == stack.jobs.result(first)["result"]
        assert stack.jobs.result(second)["error"] == stack.jobs.result(first)["error"]
    assert stack.jobs.record(first) == before


@shared(EMBEDDED, PREFORK)
def test_a_job_that_has_not_ended_is_not_retried(stack: Stack) -> None:
    job = stack.jobs.submit("hold_async", name=stack.name())
    stack.jobs.wait(job, "running")
    problem = again(stack, job, 409).json()
    assert problem["type"] == "urn:servicekit:error:conflict"
    assert "running" in problem["detail"]
    stack.jobs.change_queue(paused=True)
    assert again(stack, stack.jobs.submit("note"), 409).json()["status"] == 409


@shared(EMBEDDED, PREFORK)
def test_options_of_a_retry_win_and_the_same_key_retries_once(stack: Stack) -> None:
    first = stack.jobs.submit("note", params={"tag": "old", "priority": 1})
    stack.jobs.wait(first, "completed")
    headers = {"Idempotency-Key": stack.name()}
    answer = again(stack, first, params={"tag": "new", "priority": 9}, headers=headers)
    record = stack.jobs.record(answer.json()["job_id"])
    assert (record["tags"], record["priority"]) == (["new"], 9)
    repeated = again(stack, first, params={"tag": "new", "priority": 9}, headers=headers)
    assert repeated.json() == answer.json()
    assert repeated.headers["idempotent-replayed"] == "true"
    for spelling in (first.lower(), str(ULID.from_str(first).to_uuid())):
        assert again(stack, spelling, params={"tag": "new"}, headers=headers).json() == answer.json()
    waited = again(stack, first, 200, headers={"Prefer": "wait=20"})
    assert waited.json()["status"] == "completed"


@shared(EMBEDDED)
def test_unknown_deleted_and_malformed_jobs_are_not_retried(stack: Stack) -> None:
    job = stack.jobs.submit("note")
    stack.jobs.wait(job, "completed")
    stack.jobs.delete(job)
    assert again(stack, job, 404).json()["type"] == "urn:servicekit:error:not-found"
    assert again(stack, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 404)
    assert again(stack, "nonsense", 400).json()["type"] == "urn:servicekit:error:invalid-ulid"
    for query in ({"priority": 101}, {"nosuch": 1}):
        assert again(stack, stack.jobs.submit("note"), 422, params=query).json()["errors"]


@shared(EMBEDDED)
def test_a_retry_takes_no_arguments(stack: Stack) -> None:
    job = stack.jobs.submit("note", mark="first")
    stack.jobs.wait(job, "completed")
    for body in (b'{"mark": "other"}', b'{"x":', b"[]"):
        answer = stack.jobs.client.post(f"{PREFIX}/{job}/$retry", content=body)
        assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["body"])
    assert stack.jobs.client.post(f"{PREFIX}/{job}/$retry", json={}).status_code == 202


@own(PREFORK)
def test_a_job_that_another_program_sent_is_retried_with_its_arguments(kind: Kind, new_stack: NewStack) -> None:
    stack = new_stack(kind).start()
    first = stack.service.python("from sample import note; print(note.delay(mark='from afar').id)").strip()
    before = stack.jobs.wait(first, "completed")
    second = again(stack, first).json()["job_id"]
    stack.jobs.wait(second, "completed")
    assert stack.jobs.result(second)["result"] == "from afar"
    assert stack.jobs.record(second)["retry_of"] == before["id"]
