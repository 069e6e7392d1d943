"""Requests that do not fit, against the whole service: each answers with its problem and changes nothing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from ulid import ULID

from tests.unit.test_api_service import UNKNOWN, app, client, problem_of, submit

__all__ = ["app", "client"]  # the fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")
ID_PATHS = [
    ("GET", "/api/v1/jobs/{}"),
    ("DELETE", "/api/v1/jobs/{}"),
    ("GET", "/api/v1/jobs/{}/$result"),
    ("GET", "/api/v1/jobs/{}/$stream"),
    ("POST", "/api/v1/jobs/{}/$cancel"),
    ("GET", "/api/v1/compute/{}/result"),
]


@pytest.mark.parametrize(("method", "path"), ID_PATHS)
async def test_unknown_and_malformed_ids_are_told_apart_everywhere(client: httpx.AsyncClient, method: str, path: str):
    for job_id in (UNKNOWN, UNKNOWN.lower(), str(ULID.from_str(UNKNOWN).to_uuid())):
        response = await client.request(method, path.format(job_id))
        assert response.json() == {
            "type": "urn:servicekit:error:not-found",
            "title": "Resource Not Found",
            "status": 404,
            "detail": f"Job with id {UNKNOWN} not found",
            "instance": path.format(job_id),
        }
    for sent, meant in [
        ("not-a-ulid", "not-a-ulid"),
        ("a%2Fb", "a/b"),
        (f"{UNKNOWN}%2F", f"{UNKNOWN}/"),
        ("8" * 26, "8" * 26),
    ]:
        response = await client.request(method, path.format(sent))
        assert response.json() == {
            "type": "urn:servicekit:error:invalid-ulid",
            "title": "Invalid ULID Format",
            "status": 400,
            "detail": f"Invalid job ID format: {meant}",
            "instance": path.format(sent),
        }


async def test_an_id_may_be_spelled_in_lower_case_or_as_a_uuid(client: httpx.AsyncClient):
    job_id = await submit(client)
    for spelling in (
        job_id.lower(),
        str(ULID.from_str(job_id).to_uuid()),
        str(ULID.from_str(job_id).to_uuid()).upper(),
    ):
        assert (await client.get(f"/api/v1/jobs/{spelling}")).json()["id"] == job_id


@pytest.mark.parametrize(
    "body",
    [
        *('{"duration": true}', '{"duration": "5"}', '{"duration": null}', "{}", '{"duration": 1, "other": 2}'),
        *('{"duration": NaN}', '{"duration": Infinity}', '{"duration": 1e999}', '{"duration": -1e999}'),
        *('{"duration": 0.0999}', '{"duration": 60.001}', '{"duration": -1}', '{"duration": 0}'),
        *("", "{", "[]", "[1]", "null", "1", '"x"', '{"duration": 1} x', "[" * 100_000, '{"duration": 1e}', "\xff"),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/compute", "/api/v1/tasks/compute"])
async def test_a_body_that_does_not_fit_is_422(client: httpx.AsyncClient, path: str, body: str):
    content = body.encode("latin-1")
    response = await client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert (response.status_code, problem_of(response)) == (422, "validation-failed"), response.text
    assert response.json()["errors"]
    assert all(fault["loc"][0] == "body" for fault in response.json()["errors"])


async def test_the_bounds_of_the_duration_are_allowed(client: httpx.AsyncClient):
    for duration in ("0.1", "60", "60.0", "1"):
        headers = {"Content-Type": "application/json; charset=utf-8"}
        response = await client.post("/api/v1/compute", content=f'{{"duration": {duration}}}', headers=headers)
        assert response.status_code == 202
        await client.delete(response.headers["location"])


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_is_not_said_to_be_json_is_422(client: httpx.AsyncClient, content_type: str):
    response = await client.post("/api/v1/compute", content='{"duration": 1}', headers={"Content-Type": content_type})
    assert (response.status_code, problem_of(response)) == (422, "validation-failed")


@pytest.mark.parametrize(
    "query",
    [
        *("priority=-1", "priority=101", "priority=x", "priority=1.5", "priority=", "priority=nan"),
        *("tag=", "prio=1", "tags=a", "duration=1"),
    ],
)
async def test_submit_options_that_do_not_fit_are_422(client: httpx.AsyncClient, query: str):
    response = await client.post(f"/api/v1/compute?{query}", json={"duration": 0.1})
    assert (response.status_code, problem_of(response)) == (422, "validation-failed")
    assert response.json()["errors"][0]["loc"] == ["query", query.partition("=")[0]] + ([0] if query == "tag=" else [])


@pytest.mark.parametrize(
    "query", ["status_filter=", "status_filter=done", "status=completed", "filter=x", "task=", "limit=x"]
)
async def test_a_filter_that_is_none_is_422(client: httpx.AsyncClient, query: str):
    response = await client.get(f"/api/v1/jobs?{query}")
    assert (response.status_code, problem_of(response)) == (422, "validation-failed")


@pytest.mark.parametrize("value", ["0", "-1", "60.01", "nan", "inf", "-inf", "x", "", "1e9"])
@pytest.mark.parametrize("path", [f"/api/v1/jobs/{UNKNOWN}/$stream", "/health/$stream"])
async def test_a_poll_interval_out_of_bounds_is_422(client: httpx.AsyncClient, path: str, value: str):
    response = await client.get(f"{path}?poll_interval={value}")
    assert (response.status_code, problem_of(response)) == (422, "validation-failed")


@pytest.mark.parametrize("value", ["0.0001", "60", "1e-300"])
async def test_a_poll_interval_within_bounds_is_taken(client: httpx.AsyncClient, value: str):
    job_id = await submit(client)
    response = await client.get(f"/api/v1/jobs/{job_id}/$stream?poll_interval={value}")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")


@pytest.mark.parametrize(
    "change",
    [
        *({"max_concurrency": value} for value in (0, -1, True, "5", 1.5, 0.0, 2**31, [1], 10**30, 1e300)),
        *({"paused": value} for value in (None, 0, 1, "true")),
        *({}, {"other": 1}, {"max_concurrency": 2, "other": 1}, [], None, 5),
    ],
)
async def test_a_queue_change_that_does_not_fit_is_422_and_changes_nothing(client: httpx.AsyncClient, change: Any):
    before = (await client.get("/api/v1/queues/jobs")).json()
    response = await client.patch("/api/v1/queues/jobs", json=change)
    assert (response.status_code, problem_of(response)) == (422, "validation-failed")
    assert (await client.get("/api/v1/queues/jobs")).json() == before


async def test_an_unknown_queue_is_404(client: httpx.AsyncClient):
    for response in (
        await client.get("/api/v1/queues/none"),
        await client.patch("/api/v1/queues/none", json={"paused": True}),
    ):
        assert (response.status_code, problem_of(response)) == (404, "not-found")


async def test_jobs_cannot_be_posted_and_methods_are_named(client: httpx.AsyncClient):
    response = await client.post("/api/v1/jobs", json={})
    assert (response.status_code, problem_of(response), response.headers["allow"]) == (405, "method-not-allowed", "GET")
    response = await client.put(f"/api/v1/jobs/{UNKNOWN}")
    assert response.headers["allow"] == "DELETE, GET"


@pytest.mark.parametrize(
    "path", ["/nothing", "/api/v1/jobs/", f"/api/v1/jobs/{UNKNOWN}/nothing", "/api/v1", "//", "/%00"]
)
async def test_an_unknown_path_is_a_problem(client: httpx.AsyncClient, path: str):
    response = await client.get(httpx.URL(f"http://localhost:8000{path}"))
    assert (response.status_code, problem_of(response)) == (404, "not-found")
