"""Every error is a problem document (contract, section 3), those of the framework included."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.acceptance.kinds import shared
from tests.support.stack import EMBEDDED, PREFORK, Stack

UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
URN = "urn:servicekit:error:"


def problem(answer: httpx.Response) -> dict[str, Any]:
    """The body, which must be a problem document of the request's own path."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    extra = {"errors"} if answer.status_code == 422 else set()
    assert set(body) == {"type", "title", "status", "detail", "instance"} | extra
    assert body["status"] == answer.status_code
    assert body["instance"] == answer.request.url.raw_path.decode().partition("?")[0]
    assert "Traceback" not in answer.text
    return body


@shared(EMBEDDED, PREFORK)
def test_an_id_that_is_none(stack: Stack) -> None:
    assert problem(stack.jobs.client.get("/api/v1/jobs/not-a-ulid")) == {
        "type": "urn:servicekit:error:invalid-ulid",
        "title": "Invalid ULID Format",
        "status": 400,
        "detail": "Invalid job ID format: not-a-ulid",
        "instance": "/api/v1/jobs/not-a-ulid",
    }


@shared(EMBEDDED, PREFORK)
def test_a_job_that_nobody_submitted(stack: Stack) -> None:
    assert problem(stack.jobs.client.get(f"/api/v1/jobs/{UNKNOWN}")) == {
        "type": "urn:servicekit:error:not-found",
        "title": "Resource Not Found",
        "status": 404,
        "detail": f"Job with id {UNKNOWN} not found",
        "instance": f"/api/v1/jobs/{UNKNOWN}",
    }


@shared(EMBEDDED)
@pytest.mark.parametrize("path", ["/nosuch", "/api/v1", "/api/v1/jobs/", f"/api/v1/jobs/{UNKNOWN}/$nosuch", "/a//b"])
def test_a_path_that_is_none(stack: Stack, path: str) -> None:
    answer = stack.jobs.client.get(path)
    assert answer.status_code == 404
    body = problem(answer)
    assert (body["type"], body["title"]) == (f"{URN}not-found", "Resource Not Found")


@shared(EMBEDDED)
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/v1/jobs", {"GET"}),
        ("PUT", "/api/v1/jobs", {"GET"}),
        ("POST", f"/api/v1/jobs/{UNKNOWN}", {"GET", "DELETE"}),
        ("GET", "/api/v1/compute", {"POST"}),
        ("DELETE", "/health", {"GET"}),
        ("PUT", "/api/v1/queues/jobs", {"GET", "PATCH"}),
    ],
)
def test_a_method_that_is_not_served(stack: Stack, method: str, path: str, allowed: set[str]) -> None:
    answer = stack.jobs.client.request(method, path, json={})
    assert answer.status_code == 405
    assert problem(answer)["type"] == f"{URN}method-not-allowed"
    assert allowed <= {name.strip() for name in answer.headers["allow"].split(",")}


@shared(EMBEDDED)
def test_a_body_that_is_too_large(stack: Stack) -> None:
    large = b'{"mark": "' + b"x" * (1 << 20) + b'"}'

    def chunks() -> Any:
        yield from (large[start : start + 65536] for start in range(0, len(large), 65536))

    for content in (large, chunks()):
        answer = stack.jobs.client.post(
            "/api/v1/tasks/sample.note", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413
        assert problem(answer)["type"] == f"{URN}too-large"


@shared(EMBEDDED)
def test_a_body_just_within_the_limit_is_taken(stack: Stack) -> None:
    body = json.dumps({"mark": ""})
    mark = "x" * ((1 << 20) - len(body) - 100)
    job = stack.jobs.submit("note", mark=mark)
    stack.jobs.wait(job, "completed")
    assert stack.jobs.result(job)["result"] == mark


@shared(EMBEDDED, PREFORK)
def test_a_request_that_does_not_fit(stack: Stack) -> None:
    answers = [
        stack.jobs.client.get("/api/v1/jobs", params={"status_filter": ""}),
        stack.jobs.client.get("/api/v1/jobs", params={"status_filter": "cancelled"}),
        stack.jobs.client.get("/api/v1/jobs", params={"nosuch": "1"}),
        stack.jobs.client.post("/api/v1/compute", content=b"{", headers={"Content-Type": "application/json"}),
        stack.jobs.client.post("/api/v1/compute", json={"duration": True}),
        stack.jobs.client.patch("/api/v1/queues/jobs", json={"max_concurrency": 0}),
    ]
    for answer in answers:
        assert answer.status_code == 422, answer.request.url
        body = problem(answer)
        assert (body["type"], body["title"]) == (f"{URN}validation-failed", "Validation Failed")
        assert body["errors"]


@shared(EMBEDDED)
def test_a_finished_job_is_a_conflict_to_a_cancel(stack: Stack) -> None:
    job = stack.jobs.submit("note")
    stack.jobs.wait(job, "completed")
    answer = stack.jobs.cancel(job, 409)
    body = problem(answer)
    assert (body["type"], body["title"]) == (f"{URN}conflict", "Conflict")


@shared(EMBEDDED)
def test_head_and_unusual_requests_are_no_server_errors(stack: Stack) -> None:
    client = stack.jobs.client
    for method, path in (("HEAD", "/api/v1/jobs"), ("OPTIONS", "/api/v1/jobs"), ("TRACE", "/health"), ("QUERY", "/")):
        assert client.request(method, path).status_code < 500
    for query in ("limit=abc", "status_filter=%00", "status_filter=completed&status_filter=failed", "%FF=%FE"):
        assert client.get(f"/api/v1/jobs?{query}").status_code in (200, 422)
    assert client.get("/api/v1/jobs/%00").status_code == 400
    assert client.get("/api/v1/queues/%00").status_code in (404, 422)
