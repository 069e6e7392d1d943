"""`submit_route`: what one declaration gives, inside the service that `build` makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field

from celery_jobs.api import ApiKey, BaseServiceBuilder, ServiceInfo, submit_route
from celery_jobs.records.settings import Settings
from celery_jobs.tasks import job


class Size(BaseModel):
    width: Annotated[int, Field(gt=0)]
    height: int = 1


@job(priority=4)
def draw(size: Size, name: str = "picture") -> dict[str, object]:
    return {"area": size.width * size.height, "name": name}


class DrawRequest(BaseModel):
    """A request with rules that the task does not know."""

    size: Size
    name: Annotated[str, Field(max_length=5)] = "small"


async def forbid() -> None:
    raise HTTPException(403, "not for you")


guarded = APIRouter(prefix="/guarded", dependencies=[Depends(forbid)])
guarded.include_router(submit_route("/draw", task=draw, name="guarded_draw"))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), shutdown_timeout_seconds=0)
    builder = BaseServiceBuilder(info=ServiceInfo(id="draws", display_name="Draws"), settings=settings).with_jobs()
    builder = builder.include_router(submit_route("/draw", task=draw)).include_router(guarded)
    return builder.include_router(submit_route("/api/small", task=draw, request_model=DrawRequest)).build()


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as c,
    ):
        yield c


async def test_it_submits_with_all_that_submits_take_and_shows_the_result(client: httpx.AsyncClient):
    body = {"size": {"width": 3, "height": 2}}
    answer = await client.post("/draw", json=body, params={"tag": "a", "priority": 9}, headers={"Idempotency-Key": "1"})
    assert answer.status_code == 202
    job_id = answer.json()["job_id"]
    assert answer.headers["Location"] == answer.json()["poll_url"] == f"/api/v1/jobs/{job_id}"
    again = await client.post("/draw", json=body, headers={"Idempotency-Key": "1"})
    assert again.json()["job_id"] == job_id
    assert again.headers["Idempotent-Replayed"] == "true"
    result = (await client.get(f"/draw/{job_id}/result", headers={"Prefer": "wait=10"})).json()
    assert result["status"] == "completed"
    assert result["result"] == {"area": 6, "name": "picture"}
    record = (await client.get(f"/api/v1/jobs/{job_id}")).json()
    assert (record["task"], record["priority"], record["tags"]) == (draw.name, 9, ["a"])


async def test_a_submit_that_waits_is_answered_with_the_result(client: httpx.AsyncClient):
    answer = await client.post("/draw", json={"size": {"width": 1}}, headers={"Prefer": "wait=10"})
    assert answer.status_code == 200
    assert answer.json()["result"] == {"area": 1, "name": "picture"}


async def test_a_body_that_does_not_fit_is_422_and_says_where(client: httpx.AsyncClient):
    before = (await client.get("/api/v1/jobs")).json()
    answer = await client.post("/draw", json={"size": {"width": 0}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["body", "size", "width"]
    for path, body in (("/draw", {"size": {"width": "1"}}), ("/draw", []), ("/api/small", {"size": {}})):
        assert (await client.post(path, json=body)).status_code == 422
    assert (await client.get("/api/v1/jobs")).json() == before


async def test_a_request_model_has_the_last_word_about_the_body(client: httpx.AsyncClient):
    body = {"size": {"width": 2}, "name": "long name"}
    answer = await client.post("/api/small", json=body)
    assert answer.json()["errors"][0]["loc"] == ["body", "name"]
    answer = await client.post("/api/small", json={"size": {"width": 2}}, headers={"Prefer": "wait=10"})
    assert answer.json()["result"] == {"area": 2, "name": "picture"}


async def test_dependencies_of_a_router_around_it_are_asked(client: httpx.AsyncClient):
    assert (await client.post("/guarded/draw", json={"size": {"width": 1}})).status_code == 403


async def test_ids_that_are_none_and_unknown_ones(client: httpx.AsyncClient):
    assert (await client.get("/draw/nothing/result")).status_code == 400
    assert (await client.get("/draw/01JQRS7X6ZJ8T3V5W7Y9A1B3C5/result")).status_code == 404


async def test_the_document_describes_it_as_the_services_own(app: FastAPI):
    document = app.openapi()
    submit, result = document["paths"]["/draw"]["post"], document["paths"]["/draw/{job_id}/result"]["get"]
    assert (submit["operationId"], result["operationId"]) == ("submit_draw", "get_draw_result")
    assert submit["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/DrawRequest")
    schemas = document["components"]["schemas"]
    assert {"202", "200", "422"} <= submit["responses"].keys()
    assert "HTTPValidationError" not in str(document)
    assert schemas["Size"]["properties"].keys() == {"width", "height"}
    assert {parameter["name"] for parameter in submit["parameters"]} >= {"priority", "tag", "Idempotency-Key", "Prefer"}


async def test_keys_guard_it_like_the_other_submits(tmp_path: Path):
    keys = {"reads": ApiKey(identity="rita", scopes=frozenset({"read"}))}
    settings = Settings(data_dir=tmp_path, shutdown_timeout_seconds=0)
    builder = BaseServiceBuilder(info=ServiceInfo(id="draws", display_name="Draws"), settings=settings)
    app = builder.with_jobs().with_auth(keys).include_router(submit_route("/draw", task=draw)).build()
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as c,
    ):
        assert (await c.post("/draw", json={"size": {"width": 1}})).status_code == 401
        refused = await c.post("/draw", json={"size": {"width": 1}}, headers={"X-API-Key": "reads"})
        assert refused.status_code == 403
    assert app.openapi()["paths"]["/draw"]["post"]["security"] == [{"ApiKey": ["submit"]}, {"Bearer": ["submit"]}]


@pytest.mark.parametrize("path", ["draw", "/draw/", "/", "", "/{name}", "/a//b"])
def test_a_path_that_is_none_is_refused_where_it_is_written(path: str):
    with pytest.raises(ValueError, match="path must begin with a slash"):
        submit_route(path, task=draw)


def test_a_function_that_is_no_task_is_refused_where_it_is_written():
    with pytest.raises(TypeError, match="decorated with @job"):
        submit_route("/draw", task=forbid)  # type: ignore[arg-type]


def test_auth_without_any_keys_is_refused_when_it_is_built(tmp_path: Path):
    builder = BaseServiceBuilder(
        info=ServiceInfo(id="draws", display_name="Draws"), settings=Settings(data_dir=tmp_path)
    ).with_jobs()
    with pytest.raises(ValueError, match="with_auth needs keys"):
        builder.with_auth().build()
    with pytest.raises(ValueError, match="identity"):
        builder.with_auth({"key": {"scopes": ["read"]}})
