"""API keys: who is let in, who may do what."""

import hmac
from collections.abc import Callable, Mapping
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI

from celery_jobs.api import auth, problems
from celery_jobs.api.auth import Caller, KeyCheck
from celery_jobs.records.settings import ApiKey

KEYS = {
    "reader-key": ApiKey(identity="rita", scopes=frozenset({"read"})),
    "submit-key": ApiKey(identity="sue", scopes=frozenset({"submit"})),
    "cancel-key": ApiKey(identity="carl", scopes=frozenset({"cancel"})),
    "admin-key": ApiKey(identity="anna", admin=True, scopes=frozenset()),
    "schlüssel": ApiKey(identity="uwe"),
}


def app_with(keys: dict[str, ApiKey]) -> FastAPI:
    app = FastAPI()
    problems.install(app)
    if keys:
        app.add_middleware(KeyCheck, keys=keys)
    for path, dependency in {
        "/read": auth.reader,
        "/submit": auth.submitter,
        "/cancel": auth.canceler,
        "/admin": auth.admin,
    }.items():
        app.add_api_route(path, _who(dependency))
    for path in (
        "/health",
        "/health/$stream",
        "/livez",
        "/readyz",
        "/",
        "/static/app.js",
        "/v1/problems/x",
        "/session",
    ):
        app.add_api_route(path, _open, methods=["GET", "POST"])
    return app


def _who(dependency: Callable[..., object]) -> Callable[..., object]:
    async def who(caller: Annotated[Caller, Depends(dependency)]) -> str:
        return caller.identity

    return who


def encoded(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


async def _open() -> str:
    return "open"


async def call(
    path: str,
    headers: Mapping[str, str | bytes] | None = None,
    method: str = "GET",
    *,
    keys: dict[str, ApiKey] = KEYS,
) -> httpx.Response:
    transport = httpx.ASGITransport(app_with(keys))
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        return await client.request(
            method, path, headers=[(name.encode(), encoded(value)) for name, value in (headers or {}).items()]
        )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": "wrong"},
        {"X-API-Key": "reader-key "[:-2]},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic cmVhZGVyLWtleQ=="},
        {"Authorization": "reader-key"},
        {"X-API-Key": "wrong", "Authorization": "Bearer reader-key"},
    ],
)
async def test_without_a_good_key_the_answer_is_401(headers: dict[str, str]):
    response = await call("/read", headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:servicekit:error:unauthorized"


@pytest.mark.parametrize(
    "headers",
    [{"X-API-Key": "reader-key"}, {"Authorization": "Bearer reader-key"}, {"Authorization": "bearer reader-key"}],
)
async def test_a_key_is_taken_from_either_header(headers: dict[str, str]):
    response = await call("/read", headers)
    assert (response.status_code, response.json()) == (200, "rita")


async def test_a_key_may_hold_any_character():
    response = await call("/read", {"X-API-Key": "schlüssel".encode()})
    assert (response.status_code, response.json()) == (200, "uwe")


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("reader-key", {"/read"}),
        ("submit-key", {"/submit"}),
        ("cancel-key", {"/cancel"}),
        ("admin-key", {"/read", "/submit", "/cancel", "/admin"}),
        ("schlüssel", {"/read", "/submit", "/cancel"}),
    ],
)
async def test_a_key_may_do_what_its_scopes_say(key: str, allowed: set[str]):
    for path in ("/read", "/submit", "/cancel", "/admin"):
        response = await call(path, {"X-API-Key": key.encode()})
        assert response.status_code == (200 if path in allowed else 403), path
        if path not in allowed:
            assert response.json()["type"] == "urn:servicekit:error:forbidden"


@pytest.mark.parametrize(
    "path", ["/health", "/health/$stream", "/livez", "/readyz", "/", "/static/app.js", "/v1/problems/x"]
)
async def test_public_paths_need_no_key(path: str):
    assert (await call(path)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/healthy", "/health/", "/static", "/nothing", "/docs", "/openapi.json", "/v1/problem"]
)
async def test_nothing_else_is_public_not_even_what_does_not_exist(path: str):
    assert (await call(path)).status_code == 401


async def test_a_session_may_be_posted_and_not_read_without_a_key():
    assert (await call("/session", method="POST")).status_code == 200
    assert (await call("/session")).status_code == 401
    assert (await call("/livez", method="POST")).status_code == 401


async def test_without_keys_everybody_is_the_local_admin():
    for path in ("/read", "/submit", "/cancel", "/admin"):
        assert (await call(path, keys={})).json() == "local"


async def test_every_key_is_compared_in_constant_time_whether_or_not_one_fits(monkeypatch: pytest.MonkeyPatch):
    compared: list[bytes] = []

    def counting(known: bytes, presented: bytes) -> bool:
        compared.append(known)
        return compare(known, presented)

    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", counting)
    for key in ("reader-key", "wrong", ""):
        compared.clear()
        await call("/read", {"X-API-Key": key})
        assert len(set(compared)) == (len(KEYS) if key else 0), key
