"""Problem documents: each error has its row, and the bodies are those of the contract."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Query
from starlette.types import Scope

import celery_jobs.api
import celery_jobs.records
import celery_jobs.tasks
from celery_jobs.api import problems
from celery_jobs.records import errors


def every_error() -> Iterator[type[errors.JobsError]]:
    """All JobsError classes of the server, wherever they are defined."""
    for package in (celery_jobs.records, celery_jobs.tasks, celery_jobs.api):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(("__main__", ".env")):
                importlib.import_module(module.name)
    waiting: list[type[errors.JobsError]] = [errors.JobsError]
    while waiting:
        cls = waiting.pop()
        yield cls
        waiting += cls.__subclasses__()


def test_every_domain_error_has_a_row_of_its_own():
    missing = {cls.__name__ for cls in every_error() if cls not in problems.KINDS}
    assert not missing, f"say in api/problems.py what these mean in HTTP: {missing}"


def failing_app(error: Exception) -> FastAPI:
    app = FastAPI()
    problems.install(app)

    @app.get("/things/{name}")
    async def get(name: str, size: int = Query(default=1, ge=1)) -> None:  # pyright: ignore[reportUnusedFunction]
        raise error

    @app.delete("/things/{name}")
    async def delete(name: str) -> None:  # pyright: ignore[reportUnusedFunction]
        raise error

    return app


async def answer(error: Exception, path: str = "/things/x", method: str = "GET") -> httpx.Response:
    transport = httpx.ASGITransport(failing_app(error), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        response = await client.request(method, path)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == response.status_code
    assert set(response.json()) == {"type", "title", "status", "detail", "instance"} | (
        {"errors"} if response.status_code == 422 else set()
    )
    return response


async def test_a_malformed_id_is_told_exactly_as_documented():
    response = await answer(errors.InvalidJobId("not-a-ulid"), "/things/not-a-ulid")
    assert response.json() == {
        "type": "urn:servicekit:error:invalid-ulid",
        "title": "Invalid ULID Format",
        "status": 400,
        "detail": "Invalid job ID format: not-a-ulid",
        "instance": "/things/not-a-ulid",
    }


async def test_an_unknown_job_is_told_exactly_as_documented():
    response = await answer(errors.JobNotFound("01JQRS7X6ZJ8T3V5W7Y9A1B3C5"))
    assert response.json() == {
        "type": "urn:servicekit:error:not-found",
        "title": "Resource Not Found",
        "status": 404,
        "detail": "Job with id 01JQRS7X6ZJ8T3V5W7Y9A1B3C5 not found",
        "instance": "/things/x",
    }


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.QueueNotFound("q"), 404, "not-found"),
        (errors.TaskNotFound("t"), 404, "not-found"),
        (errors.InvalidLimit(0), 422, "validation-failed"),
        (errors.ArgumentsInvalid("t", [{"loc": ["x"], "msg": "no", "type": "t"}]), 422, "validation-failed"),
        (errors.IdempotencyKeyReused("k"), 422, "validation-failed"),
        (errors.JobFinished("id", "completed"), 409, "conflict"),
        (errors.DatabaseUnavailable("refused"), 503, "unavailable"),
        (errors.ShuttingDown(), 503, "unavailable"),
        (problems.Forbidden("alice", "the scope 'submit'"), 403, "forbidden"),
        (HTTPException(401, headers={"WWW-Authenticate": "Bearer"}), 401, "unauthorized"),
        (HTTPException(413), 413, "too-large"),
        (HTTPException(418), 418, "i-m-a-teapot"),
        (HTTPException(404, "no such thing"), 404, "not-found"),
    ],
)
async def test_errors_of_the_domain_and_the_framework(error: Exception, status: int, kind: str):
    response = await answer(error)
    assert response.status_code == status
    assert response.json()["type"] == f"urn:servicekit:error:{kind}"


async def test_faults_of_arguments_point_into_the_body():
    faults = (await answer(errors.ArgumentsInvalid("t", [{"loc": ["body", "a", 0], "msg": "no", "type": "t"}]))).json()[
        "errors"
    ]
    assert faults == [{"loc": ["body", "a", 0], "msg": "no", "type": "t"}]


@pytest.mark.parametrize("error", [errors.DatabaseUnavailable("x", retry_after_seconds=7), errors.ShuttingDown()])
async def test_an_outage_says_when_to_come_back_and_not_why(error: Exception):
    response = await answer(error)
    assert int(response.headers["retry-after"]) >= 1
    assert "OperationalError" not in response.text


@pytest.mark.parametrize(
    "secret", [RuntimeError("SELECT password"), errors.SettingsError("SELECT password"), KeyError()]
)
async def test_an_unforeseen_error_shows_nothing_of_itself(secret: Exception):
    response = await answer(secret)
    assert response.status_code == 500
    assert response.json()["type"] == "urn:servicekit:error:internal"
    assert "SELECT" not in response.text
    assert "Traceback" not in response.text


async def test_the_frameworks_own_refusals_are_problems_too():
    assert (await answer(ValueError(), "/nothing/here")).status_code == 404
    response = await answer(ValueError(), "/things/x?size=0")
    assert response.status_code == 422
    assert response.json()["errors"] == [
        {"loc": ["query", "size"], "msg": "Input should be greater than or equal to 1", "type": "greater_than_equal"}
    ]
    assert "validation-failed" in response.json()["type"]


async def test_405_names_every_method_of_the_path():
    response = await answer(ValueError(), method="POST")
    assert response.status_code == 405
    assert {method.strip() for method in response.headers["allow"].split(",")} == {"DELETE", "GET"}


async def test_the_instance_is_the_path_as_it_was_sent():
    assert (await answer(errors.QueueNotFound("q"), "/things/a%20b%C3%BC?size=2")).json()[
        "instance"
    ] == "/things/a%20b%C3%BC"


def scope_of(path: str, raw_path: bytes | None) -> Scope:
    app = FastAPI()
    app.state.id_prefixes = ("/api/v1/jobs", "/api/v1/compute")
    return {"type": "http", "path": path, "raw_path": raw_path, "app": app}


@pytest.mark.parametrize(
    ("raw", "bad_id"),
    [
        (b"/api/v1/jobs/a%2Fb", "a/b"),
        (b"/api/v1/jobs/a%2fb/$stream", "a/b"),
        (b"/api/v1/compute/%2F/result", "/"),
        (b"/api/v1/jobs/a/b", None),
        (b"/api/v1/jobsa%2Fb", None),
        (b"/other/a%2Fb", None),
    ],
)
def test_an_encoded_slash_makes_a_malformed_id(raw: bytes, bad_id: str | None):
    assert problems.id_with_slash(scope_of(raw.decode(), raw)) == bad_id


async def test_a_problem_holds_whatever_text_the_request_did():
    detail = "nasty \x00 \u2028 \U0001f600"
    assert (await answer(HTTPException(404, detail))).json()["detail"] == detail
