"""The whole service in this process: `app.router.lifespan_context` runs it, and HTTP answers as the contract says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio
from fastapi import FastAPI
from ulid import ULID

from celery_jobs.api import BaseServiceBuilder, ServiceInfo
from celery_jobs.records.settings import Settings
from tests.support.sse import Event, parse
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.asyncio(loop_scope="module")
UNKNOWN = "01JQRS7X6ZJ8T3V5W7Y9A1B3C5"
TERMINAL = {"completed", "failed", "canceled"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FastAPI]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("service"), shutdown_timeout_seconds=0)
    app = BaseServiceBuilder(info=ServiceInfo(id="test", display_name="Test"), settings=settings)
    built = app.with_jobs().with_health().build()
    async with built.router.lifespan_context(built):
        yield built


@pytest_asyncio.fixture(loop_scope="module")
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000", timeout=30) as client:
        yield client


async def submit(client: httpx.AsyncClient, duration: float = 0.1, **options: Any) -> str:
    response = await client.post("/api/v1/compute", json={"duration": duration}, **options)
    assert response.status_code == 202, response.text
    return response.json()["job_id"]


async def status_of(client: httpx.AsyncClient, job_id: str) -> str:
    return (await client.get(f"/api/v1/jobs/{job_id}")).json()["status"]


async def ended(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    async def record() -> dict[str, Any] | None:
        found = (await client.get(f"/api/v1/jobs/{job_id}")).json()
        return found if found["status"] in TERMINAL else None

    return await wait_until_async(record, f"{job_id} ends") or {}


async def started(client: httpx.AsyncClient, job_id: str) -> None:
    async def running() -> bool:
        return await status_of(client, job_id) == "running"

    await wait_until_async(running, f"{job_id} runs")


async def events(client: httpx.AsyncClient, job_id: str, last_event_id: str | None = None) -> list[Event]:
    """The stream from its opening to its end."""
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    response = await client.get(f"/api/v1/jobs/{job_id}/$stream", headers=headers)
    assert response.status_code == 200, response.text
    return [event for event in parse(response.text.splitlines()) if event.comment is None]


def problem_of(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code
    return response.json()["type"].removeprefix("urn:servicekit:error:")


async def test_a_submit_answers_as_documented(client: httpx.AsyncClient):
    response = await client.post("/api/v1/compute", json={"duration": 0.1})
    body = response.json()
    poll_url = f"/api/v1/jobs/{body['job_id']}"
    assert response.status_code == 202
    assert response.headers["location"] == poll_url
    assert int(response.headers["retry-after"]) >= 1
    assert str(ULID.from_str(body["job_id"])) == body["job_id"]
    assert body == {
        "job_id": body["job_id"],
        "message": f"Job submitted. Use polling (GET {poll_url}) or streaming (GET {poll_url}/$stream)",
        "poll_url": poll_url,
        "stream_url": f"{poll_url}/$stream",
    }


async def test_the_stream_tells_every_state_and_the_result_follows(client: httpx.AsyncClient):
    job_id = await submit(client, 0.3)
    told = await events(client, job_id, "0-0-0")
    assert [(event.id, event.status) for event in told] == [("1-1-0", "running"), ("1-4-0", "completed")]
    record = (await client.get(f"/api/v1/jobs/{job_id}")).json()
    assert told[-1].data == record
    expected = {name: record[name] for name in ("status", "submitted_at", "started_at", "finished_at", "error")}
    for path in (f"/api/v1/compute/{job_id}/result", f"/api/v1/jobs/{job_id}/$result"):
        assert (await client.get(path)).json() == {"job_id": job_id, "result": 42, **expected}
    response = await client.get(f"/api/v1/jobs/{job_id}/$stream", headers={"Last-Event-ID": "1-4-0"})
    assert response.status_code == 204


async def test_an_unfinished_job_has_no_result_yet(client: httpx.AsyncClient):
    job_id = await submit(client, 30)
    body = (await client.get(f"/api/v1/compute/{job_id}/result")).json()
    assert (body["result"], body["error"], body["finished_at"]) == (None, None, None)
    await client.delete(f"/api/v1/jobs/{job_id}")


async def test_cancel_may_be_repeated_and_comes_too_late_for_a_completed_job(client: httpx.AsyncClient):
    job_id = await submit(client, 30)
    await started(client, job_id)
    first = await client.post(f"/api/v1/jobs/{job_id}/$cancel")
    assert (first.status_code, first.json()["id"]) == (202, job_id)
    assert first.json()["status"] in ("canceling", "canceled")
    assert (await ended(client, job_id))["status"] == "canceled"
    again = await client.post(f"/api/v1/jobs/{job_id}/$cancel?force=true")
    assert (again.status_code, again.json()["status"]) == (202, "canceled")

    job_id = await submit(client)
    await ended(client, job_id)
    late = await client.post(f"/api/v1/jobs/{job_id}/$cancel")
    assert (late.status_code, problem_of(late)) == (409, "conflict")


async def test_delete_removes_the_record_and_ends_the_stream(client: httpx.AsyncClient):
    job_id = await submit(client, 30)
    await started(client, job_id)
    watching = asyncio.create_task(events(client, job_id))
    await asyncio.sleep(0.2)
    deleted = await client.delete(f"/api/v1/jobs/{job_id}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await asyncio.wait_for(watching, 5))[-1].data == {"status": "deleted"}
    for method, suffix in [("GET", ""), ("GET", "/$result"), ("GET", "/$stream"), ("POST", "/$cancel"), ("DELETE", "")]:
        response = await client.request(method, f"/api/v1/jobs/{job_id}{suffix}")
        assert (response.status_code, problem_of(response)) == (404, "not-found"), suffix


async def test_priority_and_tags_are_in_the_record(client: httpx.AsyncClient):
    job_id = await submit(client, params={"priority": 100, "tag": ["a", "b ü"]})
    record = (await client.get(f"/api/v1/jobs/{job_id}")).json()
    assert (record["priority"], record["tags"], record["submitted_by"]) == (100, ["a", "b ü"], "local")


async def test_an_idempotency_key_makes_one_job_for_one_body(client: httpx.AsyncClient):
    key = {"Idempotency-Key": "only once"}
    first = await client.post("/api/v1/compute", json={"duration": 0.1}, headers=key)
    again = await client.post(
        "/api/v1/compute", content=b'{"duration":0.10}', headers={**key, "Content-Type": "application/json"}
    )
    assert again.json() == first.json()
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    other = await client.post("/api/v1/compute", json={"duration": 0.2}, headers=key)
    assert (other.status_code, problem_of(other)) == (422, "validation-failed")
    elsewhere = await client.post("/api/v1/tasks/compute", json={"duration": 0.1}, headers=key)
    assert elsewhere.json()["job_id"] != first.json()["job_id"], "a key counts for its path only"
    for odd in ("", "x" * 256):
        response = await client.post("/api/v1/compute", json={"duration": 0.1}, headers={"Idempotency-Key": odd})
        assert response.status_code == 422


async def test_the_tasks_that_may_be_submitted_are_listed_and_others_are_404(client: httpx.AsyncClient):
    tasks = {task["name"]: task for task in (await client.get("/api/v1/tasks")).json()}
    assert set(tasks["compute"]) == {"name", "queue", "schema", "coroutine", "cancel_mode"}
    assert tasks["compute"]["schema"]["properties"]["duration"]["maximum"] == 60
    response = await client.post("/api/v1/tasks/celery.backend_cleanup", json={})
    assert (response.status_code, problem_of(response)) == (404, "not-found")


async def test_the_list_is_newest_first_filtered_and_bare(client: httpx.AsyncClient):
    done, waiting = await submit(client), await submit(client, 30)
    await ended(client, done)
    listed = (await client.get("/api/v1/jobs")).json()
    ids = [job["id"] for job in listed]
    assert ids.index(waiting) < ids.index(done)
    assert ids == sorted(ids, reverse=True)
    assert all("error_traceback" not in job and "result" not in job for job in listed)
    completed = (await client.get("/api/v1/jobs?status_filter=completed")).json()
    assert done in [job["id"] for job in completed]
    assert {job["status"] for job in completed} == {"completed"}
    await client.delete(f"/api/v1/jobs/{waiting}")


async def test_a_list_fits_its_own_schema(client: httpx.AsyncClient):
    schema = (await client.get("/api/v1/jobs/$schema")).json()
    await ended(client, await submit(client))
    jsonschema.validate((await client.get("/api/v1/jobs")).json(), schema)


async def test_a_queue_is_changed_and_shown(client: httpx.AsyncClient):
    for change, expected in [
        ({"max_concurrency": 3}, (3, False)),
        ({"paused": True}, (3, True)),
        ({"max_concurrency": None, "paused": False}, (None, False)),
    ]:
        changed = (await client.patch("/api/v1/queues/jobs", json=change)).json()
        assert (changed["max_concurrency"], changed["paused"]) == expected
        [listed] = [each for each in (await client.get("/api/v1/queues")).json() if each["name"] == "jobs"]
        for shown in ((await client.get("/api/v1/queues/jobs")).json(), listed):
            # jobs of other tests come and go meanwhile
            assert {**shown, "pending": 0, "running": 0} == {**changed, "pending": 0, "running": 0}


async def test_health_names_its_checks(client: httpx.AsyncClient):
    body = (await client.get("/health")).json()
    assert (body["status"], set(body["checks"])) == ("healthy", {"database", "broker", "workers"})
    assert (await client.get("/livez")).json() == {"status": "alive"}
    assert (await client.get("/readyz")).json() == {"status": "ready"}


async def test_the_page_at_the_root_needs_no_data(client: httpx.AsyncClient):
    response = await client.get("/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
