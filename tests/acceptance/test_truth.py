"""The record is the truth (cases C12 and C14): odd spellings of an id, many jobs. Outages: test_database_outage.py."""

from __future__ import annotations

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
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack

NewStack = Callable[..., Stack]


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
