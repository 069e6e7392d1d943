"""`Prefer: wait=N` (contract, section 3): the answer comes when the job ends, and never later than asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import PREFIX, good
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Kind, Stack, migrate
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]
SLACK_SECONDS = 5.0


def post(stack: Stack, task: str, prefer: str, **arguments: Any) -> httpx.Response:
    return stack.jobs.client.post(f"/api/v1/tasks/sample.{task}", json=arguments, headers={"Prefer": prefer})


def get(stack: Stack, path: str, prefer: str) -> httpx.Response:
    return stack.jobs.client.get(f"{PREFIX}/{path}", headers={"Prefer": prefer}, timeout=60)


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_submit_whose_job_ends_in_time_answers_with_its_result(stack: Stack) -> None:
    answer = good(post(stack, "typed", "respond-async, wait=20", count=3), 200)
    body = answer.json()
    assert answer.headers["preference-applied"] == "wait"
    assert answer.headers["location"] == f"{PREFIX}/{body['job_id']}"
    assert (body["status"], body["result"]["count"], body["error"]) == ("completed", 3, None)
    assert body == stack.jobs.result(body["job_id"])
    failed = good(post(stack, "raising", "wait=20", text="no"), 200).json()
    assert (failed["status"], failed["result"], failed["error"]) == ("failed", None, "ValueError: no")


@shared(EMBEDDED, PREFORK)
def test_a_submit_whose_job_takes_longer_answers_as_without(stack: Stack) -> None:
    name = stack.name()
    begun = time.monotonic()
    answer = good(post(stack, "hold_async", "respond-async, wait=1", name=name), 202)
    assert 0.9 <= time.monotonic() - begun < 1 + SLACK_SECONDS
    assert answer.headers["preference-applied"] == "respond-async, wait"
    assert {"location", "retry-after"} <= set(answer.headers)
    assert set(answer.json()) == {"job_id", "message", "poll_url", "stream_url"}
    at_once = good(post(stack, "hold_async", "respond-async", name=name), 202)
    assert at_once.headers["preference-applied"] == "respond-async"
    assert "preference-applied" not in good(post(stack, "hold_async", "handling=lenient", name=name), 202).headers


@shared(EMBEDDED, PREFORK)
def test_the_same_key_waits_for_the_first_job(stack: Stack) -> None:
    headers = {"Idempotency-Key": stack.name(), "Prefer": "wait=20"}
    path = "/api/v1/tasks/sample.typed"
    first = good(stack.jobs.client.post(path, json={"count": 1}, headers=headers), 200)
    again = good(stack.jobs.client.post(path, json={"count": 1}, headers=headers), 200)
    assert (again.json(), again.headers["idempotent-replayed"]) == (first.json(), "true")


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_waiter_is_told_when_the_job_ends(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold_async", name=name)
    stack.jobs.wait(job, "running")
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(get, stack, path, "wait=50") for path in (job, job.lower(), f"{job}/$result", job)]
        assert not any(each.done() for each in waiting)
        stack.journal.release(name)
        record = stack.jobs.wait(job, "completed")
        answers = [each.result(timeout=SLACK_SECONDS) for each in waiting]
    assert all(answer.headers["preference-applied"] == "wait" for answer in answers)
    assert answers[0].json() == answers[1].json() == record
    assert answers[2].json()["result"] == name
    ended = get(stack, job, "wait=50")
    assert (ended.json(), ended.headers["preference-applied"]) == (record, "wait")
    assert ended.elapsed.total_seconds() < SLACK_SECONDS


@shared(EMBEDDED, PREFORK)
def test_a_waiter_whose_time_is_up_gets_what_is_true_then(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold_async", name=name)
    stack.jobs.wait(job, "running")
    begun = time.monotonic()
    answer = good(get(stack, job, "wait=1"), 200)
    assert 0.9 <= time.monotonic() - begun < 1 + SLACK_SECONDS
    assert (answer.json()["status"], answer.headers["preference-applied"]) == ("running", "wait")
    result = good(get(stack, f"{job}/$result", "wait=0"), 200)
    assert (result.json()["status"], result.json()["result"]) == ("running", None)


@shared(EMBEDDED, PREFORK)
def test_a_waiter_hears_of_a_cancel_and_of_a_delete(stack: Stack) -> None:
    canceled, deleted = (stack.jobs.submit("hold_async", name=stack.name()) for _ in range(2))
    stack.jobs.wait(canceled, "running")
    stack.jobs.wait(deleted, "running")
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(get, stack, job, "wait=50") for job in (canceled, deleted)]
        stack.jobs.cancel(canceled)
        stack.jobs.delete(deleted)
        first, second = (each.result(timeout=20) for each in waiting)
    assert (first.status_code, first.json()["status"]) == (200, "canceled")
    assert (second.status_code, second.json()["type"]) == (404, "urn:servicekit:error:not-found")


@shared(EMBEDDED)
def test_unknown_and_malformed_ids_do_not_wait(stack: Stack) -> None:
    begun = time.monotonic()
    for path in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAV/$result"):
        assert get(stack, path, "wait=50").status_code == 404
    assert get(stack, "nonsense", "wait=50").status_code == 400
    assert time.monotonic() - begun < SLACK_SECONDS


@own(EMBEDDED, PREFORK)
def test_the_longest_wait_is_a_setting(kind: Kind, new_stack: NewStack) -> None:
    stack = new_stack(kind, JOBS_LONG_POLL_MAX_WAIT_SECONDS="1").start()
    begun = time.monotonic()
    assert post(stack, "hold_async", "wait=1000000000", name=stack.name()).status_code == 202
    assert time.monotonic() - begun < 1 + SLACK_SECONDS


@own(EMBEDDED, PREFORK)
def test_a_service_that_stops_lets_its_waiters_go_with_an_answer(kind: Kind, new_stack: NewStack) -> None:
    stack = new_stack(kind, JOBS_SHUTDOWN_TIMEOUT_SECONDS="1").start()
    job = stack.jobs.submit("hold_async", name=stack.name())
    stack.jobs.wait(job, "running")
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(get, stack, job, "wait=50"), threads.submit(post, stack, "noop", "wait=50")]
        assert waits[1].result(timeout=20).status_code == 200
        stack.process.terminate()
        answer = waits[0].result(timeout=10)
    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    stack.process.wait(timeout=15)


@pytest.mark.slow
def test_a_submit_that_waits_while_the_database_goes_is_still_accepted(
    new_stack: NewStack, own_postgres: Callable[[], Any]
) -> None:
    """The job is recorded, so an error would be a lie that makes a client submit it twice."""
    server = own_postgres()
    stack = new_stack(PREFORK, DATABASE_URL=server.new_database(migrate)).start()
    name = stack.name()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(post, stack, "hold_async", "wait=8", name=name)
        wait_until(stack.journal.starts, "the job runs")
        server.stop()
        answer = waiting.result(timeout=30)
    assert answer.status_code == 202
    server.start()
    job = answer.json()["job_id"]
    wait_until(lambda: stack.jobs.status(job) == "running", "it is there", ignore=(AssertionError, httpx.HTTPError))
    stack.journal.release(name)
    wait_until(lambda: stack.jobs.status(job) == "completed", "it ends", ignore=(AssertionError, httpx.HTTPError))
