"""What an application that mounts the second API refuses, and whom it takes for whom (contract, section 8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.remote_host import Client, Host, problem
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("remote-host")
ANGLE = {"type": "object", "properties": {"angle": {"type": "number"}}, "required": ["angle"]}
KEYS = {
    "key-of-alice": {"identity": "alice"},
    "key-of-root": {"identity": "root", "admin": True},
    "key-of-reader": {"identity": "reader", "scopes": ["read"]},
}


@pytest.fixture(scope="module")
def host(new_host: Callable[..., Host], tmp_path_factory: pytest.TempPathFactory) -> Host:
    """One that says of nobody who calls, with API keys; other applications are mounted in it."""
    url = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('database') / 'host.db'}"
    made = new_host(app="bare:app", DATABASE_URL=url, JOBS_API_KEYS=json.dumps(KEYS))
    made.wait_ready()
    return made


@pytest.fixture
def alice(host: Host) -> Client:
    return host.client("key-of-alice")


def fields(answer: httpx.Response, name: str) -> list[list[str]]:
    return [each["loc"] for each in problem(answer, name)["errors"]]


def test_problems_are_documents_whose_types_have_pages(alice: Client) -> None:
    alice.register("problems", schema=ANGLE)
    job: dict[str, Any] = {"category": "modifiers", "name": "Rotate", "schema": {}}
    problem(alice.call("PUT", "/rooms/problems/jobs", 409, json=job), "schema-conflict")
    problem(alice.call("PUT", "/rooms/problems/jobs", 400, json=job | {"category": "odd"}), "invalid-category")
    problem(alice.call("PUT", "/rooms/a@b/jobs", 400, json=job), "invalid-room-id")
    problem(alice.call("PUT", "/rooms/@global/jobs", 403, json=job), "forbidden")
    problem(alice.call("GET", f"/tasks/{uuid4()}", 404), "task-not-found")
    problem(alice.call("GET", "/tasks/none", 404), "task-not-found")
    problem(alice.call("POST", "/rooms/problems/tasks/other:modifiers:Rotate", 404, json={}), "job-not-found")
    problem(alice.call("POST", "/tasks/claim", 404, json={"worker_id": "nobody"}), "worker-not-found")
    task = alice.submit("problems", angle=1)
    problem(alice.call("PATCH", f"/tasks/{task}", 409, json={"status": "running"}), "invalid-task-transition")
    assert alice.http.get("/v1/problems/nothing").status_code == 404


def test_what_is_wrong_is_named_field_by_field(alice: Client) -> None:
    alice.register("fields", schema=ANGLE)
    path = "/rooms/fields/tasks/fields:modifiers:Rotate"
    for payload in ({"angle": "much"}, {}):
        refused = alice.call("POST", path, 422, json={"payload": payload})
        assert fields(refused, "payload-invalid") == [["body", "payload", "angle"]]
    assert fields(alice.call("POST", path, 422, json={"more": 1}), "validation-failed") == [["body", "more"]]
    unnamed = alice.call("PUT", "/rooms/fields/jobs", 422, json={"category": "modifiers"})
    assert fields(unnamed, "validation-failed") == [["body", "name"]]
    bad_query = alice.call("GET", "/rooms/fields/tasks?limit=0&status=odd", 422)
    assert fields(bad_query, "validation-failed") == [["query", "limit"], ["query", "status"]]
    broken = alice.http.post(
        alice.url + path, content=b"{", headers=alice.headers | {"Content-Type": "application/json"}
    )
    assert (broken.status_code, fields(broken, "validation-failed")) == (422, [["body"]])


def test_without_an_identity_of_the_host_api_keys_say_who_calls(host: Host, alice: Client) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": "wrong"}):
        answer = host.client().call("GET", "/workers", 401, **headers)
        problem(answer, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    root, reader = host.client("key-of-root"), host.client("key-of-reader")
    assert alice.register("keys")["workers"] == ["alice"]
    asked = {"category": "modifiers", "name": "Everywhere"}
    problem(alice.call("PUT", "/rooms/@global/jobs", 403, json=asked), "forbidden")
    root.call("PUT", "/rooms/@global/jobs", 201, json=asked)
    reader.call("GET", "/workers", 200)
    problem(reader.call("POST", "/rooms/keys/tasks/keys:modifiers:Rotate", 403, json={}), "forbidden")
    host.client().call("POST", "/sweep", 200)


def test_a_host_that_says_nothing_of_admins_has_none(host: Host) -> None:
    known = host.client(prefix="/known")
    assert known.register("known")["workers"] == ["somebody"]
    asked = {"category": "modifiers", "name": "Everywhere"}
    refused = known.call("PUT", "/rooms/@global/jobs", 403, json=asked)
    assert refused.json()["type"] == "/v1/problems/forbidden"


def test_mounted_below_a_prefix_its_addresses_begin_with_it(host: Host) -> None:
    known = host.client(prefix="/known")
    known.register("mounted")
    submitted = known.call("POST", "/rooms/mounted/tasks/mounted:modifiers:Rotate", 202, json={})
    assert submitted.headers["location"] == f"/known/v1/joblib/tasks/{submitted.json()['id']}"
    assert host.http.get(submitted.headers["location"]).json()["id"] == submitted.json()["id"]


def test_who_waits_is_answered_when_the_host_is_told_to_end(new_host: Callable[..., Host], tmp_path: Path) -> None:
    host = new_host(
        app="bare:app", DATABASE_URL=f"sqlite+aiosqlite:///{tmp_path / 'host.db'}", JOBS_API_KEYS=json.dumps(KEYS)
    )
    host.wait_ready()
    worker = host.client("key-of-alice")
    worker.register("ending")
    task = worker.submit("ending")
    worker.claim()
    before = worker.call("GET", "/workers", 200).text
    with ThreadPoolExecutor(2) as waiting:
        end, claim = waiting.submit(worker.task, task, 60), waiting.submit(worker.claim, 60)
        wait_until(lambda: worker.call("GET", "/workers", 200).text != before, "the claim waits")
        host.process.terminate()
        assert (claim.result(10), end.result(10)["status"]) == (None, "claimed")
    assert host.process.wait(5) in (0, -15)
    assert "Traceback" not in host.process.log


def test_a_host_that_gives_no_session_reads_so_in_its_log(host: Host) -> None:
    answer = host.client(prefix="/forgetful").call("GET", "/workers", 500)
    assert answer.json()["type"] == "/v1/problems/internal"
    assert "get_db_session" not in answer.text
    host.process.wait_for_log("override get_db_session")
