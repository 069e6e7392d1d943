"""Every problem of the server is an exception of its own, and whatever else answers is one too."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from celery_jobs import client
from celery_jobs.client.errors import ClientError, Conflict, NotFound, Problem, problem_of

REQUEST = httpx.Request("GET", "http://127.0.0.1:8000/v1/joblib/workers")


def answer(status: int, body: Any = None, **headers: str) -> httpx.Response:
    if isinstance(body, str):
        return httpx.Response(status, text=body, headers=headers, request=REQUEST)
    return httpx.Response(status, json=body, headers=headers, request=REQUEST)


def problem(status: int, name: str, **more: Any) -> dict[str, Any]:
    return {"type": f"/v1/problems/{name}", "title": "Title", "status": status, "detail": "what it is", **more}


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (404, "job-not-found", client.JobNotFound),
        (409, "schema-conflict", client.SchemaConflict),
        (400, "invalid-category", client.InvalidCategory),
        (404, "worker-not-found", client.WorkerNotFound),
        (404, "task-not-found", client.TaskNotFound),
        (409, "invalid-task-transition", client.InvalidTaskTransition),
        (403, "forbidden", client.Forbidden),
        (401, "unauthorized", client.Unauthorized),
        (400, "invalid-room-id", client.InvalidRoomId),
        (422, "payload-invalid", client.PayloadInvalid),
        (422, "validation-failed", client.ValidationFailed),
        (503, "unavailable", client.Unavailable),
        (413, "too-large", client.TooLarge),
        (500, "internal", client.Internal),
        (404, "not-found", client.NotFound),
        (405, "method-not-allowed", client.MethodNotAllowed),
    ],
)
def test_a_problem_is_the_exception_of_its_type(status: int, name: str, kind: type[Problem]) -> None:
    error = problem_of(answer(status, problem(status, name)))
    assert type(error) is kind
    assert (error.status, error.type, error.title) == (status, f"/v1/problems/{name}", "Title")
    assert error.detail == "what it is"
    assert error.transient is (status >= 500)
    assert "what it is" in str(error)


def test_types_of_the_other_api_are_known_too() -> None:
    body = {"type": "urn:servicekit:error:not-found", "title": "Resource Not Found", "status": 404, "detail": "Job …"}
    assert type(problem_of(answer(404, body))) is NotFound


def test_a_type_that_is_not_known_counts_by_its_status() -> None:
    assert type(problem_of(answer(409, problem(409, "of-next-year")))) is Conflict
    assert type(problem_of(answer(418, problem(418, "teapot")))) is Problem


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_page_of_a_proxy_is_an_outage(status: int) -> None:
    error = problem_of(answer(status, "<html>Bad Gateway</html>"))
    assert type(error) is client.Unavailable
    assert error.transient
    assert "html" not in str(error)


@pytest.mark.parametrize("body", ["", "null", "[1]", "<html>", '"text"'])
def test_what_is_no_problem_document_is_an_error_all_the_same(body: str) -> None:
    error = problem_of(answer(403, body))
    assert type(error) is client.Forbidden
    assert error.errors == []


def test_a_redirect_says_where_to() -> None:
    error = problem_of(answer(301, "", location="https://example.org/"))
    assert type(error) is client.UnexpectedAnswer
    assert not error.transient
    assert "https://example.org/" in str(error)


def test_faults_of_a_payload_are_named() -> None:
    faults = [{"loc": ["body", "payload", "angle"], "msg": "'x' is not of type 'number'", "type": "type"}]
    error = problem_of(answer(422, problem(422, "payload-invalid", errors=faults)))
    assert isinstance(error, client.PayloadInvalid)
    assert error.errors == faults
    assert "body.payload.angle: 'x' is not of type 'number'" in str(error)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("", None), ("soon", None), ("-1", None), ("٣", None)])
def test_retry_after_is_read_where_it_is_a_number(header: str, seconds: float | None) -> None:
    response = httpx.Response(503, headers=[(b"retry-after", header.encode())], request=REQUEST)
    assert problem_of(response).retry_after_seconds == seconds


def test_every_error_is_exported_and_one_family() -> None:
    named = {name for name in client.__all__ if isinstance(getattr(client, name), type)}
    exported = {getattr(client, name) for name in named if issubclass(getattr(client, name), ClientError)}

    def family(kind: type[ClientError]) -> set[type[ClientError]]:
        return {kind}.union(*(family(child) for child in kind.__subclasses__()))

    assert family(ClientError) == exported
