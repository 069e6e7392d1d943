"""The record is the truth (cases C12 and C14): outages of the database, odd spellings of an id, many jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
import pytest
from ulid import ULID

from tests.acceptance.kinds import own, shared
from tests.support.jobs import good
from tests.support.postgres import PostgresServer
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack, migrate
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]

UNAVAILABLE_SECONDS = 5.0 + 2.0


@own(PREFORK)
def test_a_job_that_ends_while_the_database_is_down_is_completed_once_it_is_back(
    new_stack: NewStack, kind: Kind, own_postgres: Callable[[], PostgresServer]
) -> None:
    server = own_postgres()
    stack = new_stack(kind, slots=3, DATABASE_URL=server.new_database(migrate)).start()
    names = [stack.name() for _ in range(3)]
    good_job = stack.jobs.submit("hold", name=names[0])
    bad_job = stack.jobs.submit("hold", name=names[1], ending="raise")
    canceled = stack.jobs.submit("hold", name=names[2])
    jobs = [good_job, bad_job, canceled]
    for job in jobs:
        stack.journal.wait_start(job)
    stack.jobs.cancel(canceled)
    server.stop()
    stack.journal.release(*names)
    ends = [stack.journal.wait_end(job) for job in jobs]
    refused(stack)
    assert stack.journal.ends(*jobs)
    server.start()
    wait_until(lambda: stack.jobs.client.get("/readyz").status_code == 200, "the API is ready again", 30)
    assert stack.jobs.wait(good_job, "completed", timeout=40)["attempt"] == 1
    assert stack.jobs.result(good_job)["result"] == names[0]
    assert stack.jobs.wait(bad_job, "failed", timeout=40)["error"] == "ValueError: told to raise"
    stack.jobs.wait(canceled, "canceled", timeout=40)
    assert len(ends) == len(stack.journal.starts(*jobs)) == 3
    stack.jobs.wait(stack.jobs.submit("note"), "completed", timeout=40)


def refused(stack: Stack) -> None:
    """What the API says while its database is down, and how soon."""
    client = stack.jobs.client
    requests = [
        lambda: client.get("/api/v1/jobs"),
        lambda: client.get(f"/api/v1/jobs/{ULID()}"),
        lambda: client.get(f"/api/v1/jobs/{ULID()}/$stream"),
        lambda: client.post("/api/v1/tasks/sample.note", json={}),
        lambda: client.get("/readyz"),
    ]
    for request in requests:
        began = time.monotonic()
        answer = request()
        assert time.monotonic() - began < UNAVAILABLE_SECONDS
        assert answer.status_code == 503, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:servicekit:error:unavailable"
        assert int(answer.headers["retry-after"]) > 0
    health = client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
    assert client.get("/livez").status_code == 200


@own(PREFORK)
def test_an_outage_of_the_database_longer_than_t_kills_no_healthy_worker(
    new_stack: NewStack, kind: Kind, own_postgres: Callable[[], PostgresServer]
) -> None:
    server, timeout = own_postgres(), 3.0
    env = {"DATABASE_URL": server.new_database(migrate), "JOBS_WORKER_TIMEOUT_SECONDS": f"{timeout:g}"}
    stack = new_stack(kind, slots=1, **env).start()
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    with stack.jobs.stream(job) as stream:
        assert stream.next().status == "running"
        server.pause()
        time.sleep(timeout * 1.5)  # the outage itself, not a wait for anything
        server.resume()
        wait_until(lambda: stack.jobs.client.get("/readyz").status_code == 200, "the API is ready again", 30)
        stays(lambda: stack.jobs.status(job) == "running", "running", timeout)
        stack.journal.release(name)
        assert [event.status for event in stream.rest()] == ["completed"]
    assert stack.jobs.record(job)["attempt"] == 1


@shared(EMBEDDED, PREFORK, SQLITE)
def test_every_spelling_of_an_id_means_the_same_job(stack: Stack) -> None:
    job = stack.jobs.submit("note")
    record = stack.jobs.wait(job, "completed")
    uuid = UUID(bytes=ULID.from_str(job).bytes)
    for spelling in (job.lower(), str(uuid), str(uuid).upper()):
        assert stack.jobs.record(spelling) == record
        assert stack.jobs.result(spelling)["job_id"] == job
        with stack.jobs.stream(spelling) as stream:
            assert [event.data["id"] for event in stream.rest() if event.data] == [job]
        assert stack.jobs.cancel(spelling, 409).json()["status"] == 409
    assert good(stack.jobs.client.get(f"/api/v1/compute/{job.lower()}/result"), 200).json()["job_id"] == job
    stack.jobs.delete(str(uuid))
    assert stack.jobs.client.get(f"/api/v1/jobs/{job}").status_code == 404


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(
    ("text", "status", "name"),
    [
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", 404, None),
        ("9b2f6a34-57c1-4c0e-8f0e-3d6f1a2b4c5d", 404, None),
        ("not-a-ulid", 400, "not-a-ulid"),
        ("0", 400, "0"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAU", 400, "01ARZ3NDEKTSV4RRFFQ69G5FAU"),
        ("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", 400, "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV0", 400, "01ARZ3NDEKTSV4RRFFQ69G5FAV0"),
        ("a%2Fb", 400, "a/b"),
        ("%20", 400, " "),
        ("%C3%A9", 400, "é"),
    ],
)
def test_an_id_that_means_no_job_is_told_so_on_every_path(
    stack: Stack, text: str, status: int, name: str | None
) -> None:
    client = stack.jobs.client
    path = f"/api/v1/jobs/{text}"
    answers = [
        client.get(path),
        client.get(f"{path}/$result"),
        client.get(f"{path}/$stream", timeout=5),
        client.post(f"{path}/$cancel"),
        client.delete(path),
        client.get(f"/api/v1/compute/{text}/result"),
    ]
    for answer in answers:
        assert answer.status_code == status, answer.request.url
        problem = answer.json()
        assert problem["instance"] == answer.request.url.raw_path.decode()
        if status == 400:
            assert problem["title"] == "Invalid ULID Format"
            assert problem["detail"] == f"Invalid job ID format: {name}"


@own(EMBEDDED, PREFORK)
def test_a_thousand_jobs_from_twenty_clients_are_all_there_and_all_complete(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, slots=4).start()
    url = stack.apis[0].url

    def client(_: int) -> list[str]:
        jobs: list[str] = []
        with httpx.Client(base_url=url, timeout=30) as http:
            for _ in range(50):
                accepted = good(http.post("/api/v1/tasks/sample.noop", json={}), 202).json()
                seen = http.get(accepted["poll_url"])
                assert seen.status_code == 200, f"a job that was accepted is not there: {seen.text}"
                jobs.append(accepted["job_id"])
        return jobs

    with ThreadPoolExecutor(20) as pool:
        jobs = [job for batch in pool.map(client, range(20)) for job in batch]
    stack.jobs.wait_idle(timeout=90)
    records: dict[str, dict[str, Any]] = {record["id"]: record for record in stack.jobs.list()}
    assert len(records) == len(set(jobs)) == 1000
    assert {records[job]["status"] for job in jobs} == {"completed"}
    for record in records.values():
        times = [datetime.fromisoformat(record[f"{name}_at"]) for name in ("submitted", "started", "finished")]
        assert times == sorted(times)
        assert record["attempt"] == 1
