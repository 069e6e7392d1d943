"""Deleting (contract, section 2): the record is gone at once; the code of a plain function runs to its end."""

from __future__ import annotations

import time

from tests.acceptance.kinds import shared
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Stack
from tests.support.waiting import wait_until


def gone(stack: Stack, job: str) -> None:
    """404 everywhere, at once."""
    client, path = stack.jobs.client, f"/api/v1/jobs/{job}"
    for answer in (client.get(path), client.get(f"{path}/$result"), client.get(f"{path}/$stream", timeout=5)):
        assert answer.status_code == 404
        assert answer.json()["type"] == "urn:servicekit:error:not-found"
    assert client.post(f"{path}/$cancel").status_code == 404
    assert client.delete(path).status_code == 404
    assert job not in {record["id"] for record in stack.jobs.list()}


@shared(EMBEDDED, PREFORK, SQLITE)
def test_a_finished_job_is_deleted(stack: Stack) -> None:
    for task in ("note", "raising"):
        job = stack.jobs.submit(task)
        stack.jobs.wait(job)
        stack.jobs.delete(job)
        gone(stack, job)


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_waiting_job_that_is_deleted_never_runs(stack: Stack) -> None:
    name = stack.name()
    busy = [stack.jobs.submit("hold", name=name) for _ in range(stack.slots)]
    for each in busy:
        stack.journal.wait_start(each)
    job = stack.jobs.submit("note")
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "pending"
        stack.jobs.delete(job)
        gone(stack, job)
        assert stream.rest()[-1].data == {"status": "deleted"}
    last = stack.jobs.submit("note")
    stack.journal.release(name)
    stack.jobs.wait(last, "completed")
    assert stack.journal.lines(job) == []
    gone(stack, job)


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_running_coroutine_that_is_deleted_is_interrupted(stack: Stack) -> None:
    job = stack.jobs.submit("hold_async", name=stack.name())
    stack.journal.wait_start(job)
    stack.jobs.delete(job)
    gone(stack, job)
    assert stack.journal.wait_end(job, 10).how == "CancelledError"
    gone(stack, job)
    stack.jobs.wait(stack.jobs.submit("note"), "completed")


@shared(EMBEDDED, PREFORK, THREADS, SQLITE)
def test_a_running_plain_function_that_is_deleted_runs_to_its_end(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "running"
        deleted = time.time()
        stack.jobs.delete(job)
        gone(stack, job)
        assert stream.rest(10)[-1].data == {"status": "deleted"}
    assert stack.journal.ends(job) == []
    stack.journal.release(name)
    end = stack.journal.wait_end(job)
    assert (end.how, end.at > deleted) == ("return", True)
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    gone(stack, job)


@shared(EMBEDDED, PREFORK)
def test_a_canceling_job_is_deleted(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold", name=name, ending="raise")
    stack.journal.wait_start(job)
    stack.jobs.cancel(job)
    stack.jobs.delete(job)
    gone(stack, job)
    stack.journal.release(name)
    assert stack.journal.wait_end(job).how == "ValueError"
    gone(stack, job)


@shared(EMBEDDED, PREFORK)
def test_deleted_code_that_still_runs_is_not_listed_but_counted(stack: Stack) -> None:
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    stack.jobs.change_queue(max_concurrency=1)
    try:
        following = stack.jobs.submit("note")
        stack.jobs.delete(job)
        assert [record["id"] for record in stack.jobs.list(status_filter="running")] == []
        assert stack.jobs.status(following) == "pending"
        stack.journal.release(name)
        stack.jobs.wait(following, "completed")
        assert stack.journal.ends(job)[0].at <= stack.journal.starts(following)[0].at
    finally:
        stack.jobs.change_queue(max_concurrency=None)


@shared(EMBEDDED, PREFORK)
def test_only_one_of_several_deletes_finds_the_job(stack: Stack) -> None:
    job = stack.jobs.submit("note")
    stack.jobs.wait(job, "completed")
    path = f"/api/v1/jobs/{job}"
    assert [stack.jobs.client.delete(path).status_code for _ in range(3)] == [204, 404, 404]
    wait_until(lambda: job not in {record["id"] for record in stack.jobs.list()}, "it is not listed")
