"""API keys, and the refusals of a service without them (contract, section 9)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.kinds import own, shared
from tests.support.jobs import Jobs, good
from tests.support.stack import EMBEDDED, PREFORK, Kind, Stack

KEYS = {
    "alice-key": {"identity": "alice"},
    "bob-key": {"identity": "bob"},
    "reader-key": {"identity": "reader", "scopes": ["read"]},
    "submitter-key": {"identity": "submitter", "scopes": ["read", "submit"]},
    "admin-key": {"identity": "root", "admin": True},
}
OPEN = ["/health", "/livez", "/readyz", "/"]
NOTE = "/api/v1/tasks/sample.note"


@pytest.fixture(scope="module")
def keyed(start_stack: Callable[..., Stack]) -> Stack:
    """A service with keys, for all tests of this file."""
    return start_stack(EMBEDDED, JOBS_API_KEYS=json.dumps(KEYS))


@pytest.fixture
def client(keyed: Stack) -> Iterator[httpx.Client]:
    """Without a key."""
    with httpx.Client(base_url=keyed.apis[0].url, timeout=30) as client:
        yield client


def as_(identity: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {identity}-key"}


pytestmark = pytest.mark.xdist_group("keys")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": "wrong"},
        {"X-API-Key": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic YWxpY2Uta2V5Og=="},
        {"Authorization": "alice-key"},
        {"X-API-Key": "alice-key "[:8]},
        {"X-API-Key": "ALICE-KEY"},
    ],
)
def test_without_a_good_key_every_call_is_unauthorized(client: httpx.Client, headers: dict[str, str]) -> None:
    calls = [
        client.get("/api/v1/jobs", headers=headers),
        client.get("/api/v1/tasks", headers=headers),
        client.get("/api/v1/queues", headers=headers),
        client.get("/api/v1/jobs/not-a-ulid", headers=headers),
        client.get("/api/v1/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/$stream", headers=headers),
        client.post(NOTE, json={}, headers=headers),
        client.post(NOTE, content=b"{", headers=headers),
        client.delete("/api/v1/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV", headers=headers),
        client.patch("/api/v1/queues/jobs", json={"paused": True}, headers=headers),
    ]
    for answer in calls:
        assert answer.status_code == 401, answer.request.url
        assert answer.json()["type"] == "urn:servicekit:error:unauthorized"
        assert answer.headers["content-type"] == "application/problem+json"
        assert "www-authenticate" in answer.headers


@pytest.mark.parametrize("path", OPEN)
def test_some_paths_need_no_key(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 200


def test_the_health_stream_needs_no_key(client: httpx.Client) -> None:
    with client.stream("GET", "/health/$stream") as response:
        assert response.status_code == 200


@pytest.mark.parametrize("headers", [as_("alice"), {"X-API-Key": "alice-key"}, {"Authorization": "bearer alice-key"}])
def test_a_key_is_taken_from_either_header_and_says_who_submitted(
    keyed: Stack, client: httpx.Client, headers: dict[str, str]
) -> None:
    client.headers.update(headers)
    job = Jobs(client).submit("note")
    assert Jobs(client).wait(job, "completed")["submitted_by"] == "alice"
    with Jobs(client).stream(job) as stream:
        assert [event.status for event in stream.rest()] == ["completed"]


def test_a_key_may_do_what_its_scopes_say(client: httpx.Client) -> None:
    job = good(client.post(NOTE, json={}, headers=as_("submitter")), 202).json()["job_id"]
    path = f"/api/v1/jobs/{job}"
    for reader in ("reader", "submitter", "alice", "admin"):
        assert client.get(path, headers=as_(reader)).status_code == 200
    forbidden = [
        client.post(NOTE, json={}, headers=as_("reader")),
        client.post("/api/v1/compute", json={"duration": 1}, headers=as_("reader")),
        client.post(f"{path}/$cancel", headers=as_("reader")),
        client.post(f"{path}/$cancel", headers=as_("submitter")),
        client.delete(path, headers=as_("submitter")),
        client.patch("/api/v1/queues/jobs", json={"paused": False}, headers=as_("alice")),
        client.patch("/api/v1/queues/jobs", json={"paused": False}, headers=as_("reader")),
    ]
    for answer in forbidden:
        assert answer.status_code == 403, answer.request.url
        assert answer.json()["type"] == "urn:servicekit:error:forbidden"
    assert client.patch("/api/v1/queues/jobs", json={"paused": False}, headers=as_("admin")).status_code == 200
    assert client.delete(path, headers=as_("alice")).status_code == 204


def test_an_idempotency_key_belongs_to_its_caller(client: httpx.Client) -> None:
    jobs = [
        good(client.post(NOTE, json={}, headers={**as_(name), "Idempotency-Key": "same"}), 202).json()["job_id"]
        for name in ("alice", "bob", "alice")
    ]
    assert jobs[0] == jobs[2] != jobs[1]


def test_no_key_is_ever_shown(keyed: Stack, client: httpx.Client) -> None:
    client.get("/api/v1/jobs", headers={"X-API-Key": "alice-key"})
    client.get("/api/v1/jobs", headers={"X-API-Key": "a-wrong-key"})
    log = keyed.process.log
    assert not any(key in log for key in [*KEYS, "a-wrong-key"])


@own(EMBEDDED)
def test_keys_can_be_in_a_file(new_stack: Callable[..., Stack], kind: Kind, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(KEYS), encoding="utf-8")
    stack = new_stack(kind, JOBS_API_KEYS=str(file)).start()
    client = stack.apis[0].client
    assert client.get("/api/v1/jobs").status_code == 401
    assert client.get("/api/v1/jobs", headers=as_("reader")).status_code == 200


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8000"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1.nip.io"}, 403),
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:1234"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "testserver"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost:8000", "Origin": "https://localhost:8000"}, 403),
    ],
)
def test_without_keys_foreign_hosts_and_origins_are_refused(stack: Stack, headers: dict[str, str], status: int) -> None:
    for method, path in (("GET", "/api/v1/jobs"), ("GET", "/health")):
        answer = stack.jobs.client.request(method, path, headers=headers)
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["type"] == "urn:servicekit:error:forbidden"
    posted = stack.jobs.client.post(NOTE, json={}, headers=headers)
    assert posted.status_code == (202 if status == 200 else 403)


@own(EMBEDDED)
def test_hosts_and_origins_can_be_allowed(new_stack: Callable[..., Stack], kind: Kind) -> None:
    env = {"JOBS_ALLOWED_HOSTS": "jobs.example,other.example", "JOBS_CORS_ORIGINS": "https://page.example"}
    client = new_stack(kind, **env).start().apis[0].client
    assert client.get("/api/v1/jobs", headers={"Host": "jobs.example"}).status_code == 200
    assert client.get("/api/v1/jobs", headers={"Host": "third.example"}).status_code == 403
    allowed = client.get("/api/v1/jobs", headers={"Origin": "https://page.example"})
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "https://page.example")
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    assert client.options("/api/v1/compute", headers=asked).status_code == 200
    assert client.get("/api/v1/jobs", headers={"Origin": "https://evil.example"}).status_code == 403


def test_with_keys_a_foreign_host_is_served(client: httpx.Client) -> None:
    assert client.get("/api/v1/jobs", headers={**as_("alice"), "Host": "jobs.example"}).status_code == 200
