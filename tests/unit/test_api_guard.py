"""The refusals of section 9: foreign hosts and origins, and bodies that are too large."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request

from celery_jobs.api import problems
from celery_jobs.api.guard import BodyLimit, OriginGuard

LIMIT = 1000


async def call(
    method: str = "GET",
    path: str = "/",
    headers: list[tuple[str, str]] | None = None,
    *,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    content: bytes | AsyncIterator[bytes] | None = None,
) -> httpx.Response:
    app = FastAPI()
    problems.install(app)
    app.add_middleware(BodyLimit, limit=LIMIT)
    app.add_middleware(OriginGuard, allowed_hosts=hosts, allowed_origins=origins)

    @app.post("/")
    async def length(request: Request) -> int:  # pyright: ignore[reportUnusedFunction]
        return len(await request.body())

    @app.get("/")
    async def page() -> str:  # pyright: ignore[reportUnusedFunction]
        return "page"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8000") as client:
        return await client.request(method, path, headers=headers, content=content)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8000", "testserver"],
)
async def test_local_hosts_are_served(host: str):
    assert (await call(headers=[("Host", host)])).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "[::2]",
        "0.0.0.0",
        "",
        "localhost@e",
    ],
)
async def test_foreign_hosts_are_refused(host: str):
    response = await call(headers=[("Host", host)])
    assert response.status_code == 403
    assert response.headers["content-type"] == "application/problem+json"
    assert "JOBS_ALLOWED_HOSTS" in response.json()["detail"]


async def test_a_second_host_header_hides_nothing():
    response = await call(headers=[("Host", "localhost"), ("Host", "evil.example")])
    assert response.status_code == 403


async def test_a_host_that_is_allowed_is_served():
    assert (await call(headers=[("Host", "Jobs.example:8000")], hosts=("jobs.EXAMPLE",))).status_code == 200


@pytest.mark.parametrize("origin", ["http://localhost:8000", "HTTP://LOCALHOST:8000"])
async def test_the_same_origin_is_served(origin: str):
    assert (await call("POST", headers=[("Origin", origin)], content=b"{}")).status_code == 200


async def test_a_default_port_may_be_left_out():
    assert (await call(headers=[("Host", "localhost"), ("Origin", "http://localhost:80")])).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://localhost:8001", "https://localhost:8000", "http://127.0.0.1:8000", "null", ""],
)
async def test_other_origins_are_refused(origin: str):
    response = await call("POST", headers=[("Origin", origin)], content=b"{}")
    assert response.status_code == 403
    assert "JOBS_CORS_ORIGINS" in response.json()["detail"]


async def test_an_origin_that_is_allowed_is_served():
    response = await call(headers=[("Origin", "https://app.example")], origins=("https://App.example/",))
    assert response.status_code == 200


@pytest.mark.parametrize("size", [0, LIMIT])
async def test_a_body_up_to_the_limit_passes(size: int):
    assert (await call("POST", content=b"x" * size)).json() == size


async def test_a_declared_body_over_the_limit_is_413():
    response = await call("POST", content=b"x" * (LIMIT + 1))
    assert response.status_code == 413
    assert response.json()["type"] == "urn:servicekit:error:too-large"
    assert response.json()["instance"] == "/"


async def chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(size):
        yield b"x"


async def test_a_body_without_a_declared_length_is_counted():
    assert (await call("POST", content=chunks(LIMIT))).json() == LIMIT
    response = await call("POST", content=chunks(LIMIT + 1))
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"
