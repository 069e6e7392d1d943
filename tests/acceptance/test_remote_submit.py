"""Submitting a remote task (contract, section 8): accepted with its address, or refused with the wrong field."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import good
from tests.support.remote import PREFIX, Json, Remote, fresh, refused, timestamp
from tests.support.stack import EMBEDDED, PREFORK, Stack

pytestmark = pytest.mark.xdist_group("remote-submit")

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "angle": {"type": "number", "maximum": 360},
        "count": {"type": "integer"},
        "axis": {"enum": ["x", "y", "z"]},
        "box": {"$ref": "#/$defs/Box"},
    },
    "required": ["angle"],
    "additionalProperties": False,
    "$defs": {
        "Box": {
            "type": "object",
            "properties": {"sides": {"type": "array", "items": {"type": "integer"}}},
            "required": ["sides"],
        }
    },
}


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param, worker=False)


@pytest.fixture
def serving(served: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(served.apis[0].client).serving(schema=SCHEMA)


def test_a_submission_is_accepted_with_its_address(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    answer = good(worker.post(job, json={"payload": {"angle": 90, "axis": "z"}}), 202)
    task = answer.json()
    UUID(task["id"])
    assert answer.headers["location"] == f"{PREFIX}/tasks/{task['id']}"
    assert task == {
        "id": task["id"],
        "job_name": job,
        "room_id": worker.room,
        "payload": {"angle": 90, "axis": "z"},
        "status": "pending",
        "created_at": task["created_at"],
        "started_at": None,
        "completed_at": None,
        "error": None,
        "worker_id": None,
        "created_by_id": worker.client.get("/v1/me").json()["id"],
        "result": None,
        "queue_position": 1,
    }
    assert abs(timestamp(task["created_at"]) - time.time()) < 5
    assert good(worker.client.get(answer.headers["location"]), 200).json() == task


def test_the_payload_may_be_left_out_where_the_schema_allows_it(served: Stack) -> None:
    worker, job = Remote(served.apis[0].client).serving(schema={})
    assert good(worker.post(job, json={}), 202).json()["payload"] == {}


def test_a_task_of_a_global_job_belongs_to_the_room_of_its_submission(serving: tuple[Remote, str]) -> None:
    worker, _ = serving
    job = worker.register(fresh("Shared"), room="@global")["full_name"]
    elsewhere = fresh()
    task = worker.submit(job, room=elsewhere)
    assert (task["room_id"], task["job_name"]) == (elsewhere, job)
    assert [each["id"] for each in worker.tasks(elsewhere)["items"]] == [task["id"]]
    assert worker.tasks()["items"] == []
    assert worker.claim_one()["room_id"] == elsewhere


FAULTS: list[tuple[Any, str]] = [
    ({}, "angle"),
    ({"angle": "ninety"}, "angle"),
    ({"angle": True}, "angle"),
    ({"angle": None}, "angle"),
    ({"angle": [1]}, "angle"),
    ({"angle": 361}, "angle"),
    ({"angle": 1, "count": 1.5}, "count"),
    ({"angle": 1, "count": False}, "count"),
    ({"angle": 1, "axis": "w"}, "axis"),
    ({"angle": 1, "nosuch": 1}, "nosuch"),
    ({"angle": 1, "box": {}}, "sides"),
]


@pytest.mark.parametrize(("payload", "field"), FAULTS)
def test_a_payload_that_does_not_fit_names_the_field(serving: tuple[Remote, str], payload: Json, field: str) -> None:
    worker, job = serving
    [fault] = refused(worker.post(job, json={"payload": payload}), 422, "payload-invalid")["errors"]
    assert fault["loc"][:2] == ["body", "payload"]
    assert field in [*fault["loc"], *fault["msg"].replace("'", " ").split()]
    assert worker.tasks()["total"] == 0


def test_a_fault_deep_inside_is_named_by_its_place(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    payload = {"angle": 1, "box": {"sides": [1, 2, "three"]}}
    [fault] = refused(worker.post(job, json={"payload": payload}), 422, "payload-invalid")["errors"]
    assert fault["loc"] == ["body", "payload", "box", "sides", 2]


def test_all_faults_are_named_at_once(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    payload = {"angle": "a", "count": "b", "axis": "c"}
    errors = refused(worker.post(job, json={"payload": payload}), 422, "payload-invalid")["errors"]
    assert sorted(fault["loc"][-1] for fault in errors) == ["angle", "axis", "count"]


@pytest.mark.parametrize("payload", [[], ["angle"], "angle", 1, True, None])
def test_a_payload_is_an_object(served: Stack, payload: Any) -> None:
    worker, job = Remote(served.apis[0].client).serving(schema={})
    answer = worker.post(job, json={"payload": payload})
    assert answer.status_code == 422
    name = answer.json()["type"].rpartition("/")[2]
    assert name in ("payload-invalid", "validation-failed")
    assert refused(answer, 422, name)["errors"][0]["loc"][:2] == ["body", "payload"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"payload": {"angle": NaN}}',
        b'{"payload": {"angle": -Infinity}}',
        b'{"payload": {"angle": 1e999}}',
        b'{"payload": {"angle": 1}, "nosuch": 1}',
        b'{"payload": {"angle": 1}} x',
        b'{"payload": {"angle": "\xff"}}',
        b'{"payload": ' + b'{"box":' * 100_000 + b"1" + b"}" * 100_001,
    ],
)
def test_a_body_that_is_none_is_refused_and_leaves_nothing(serving: tuple[Remote, str], body: bytes) -> None:
    worker, job = serving
    answer = worker.post(job, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    name = answer.json()["type"].rpartition("/")[2]
    assert name in ("payload-invalid", "validation-failed")  # the latter is what is no body at all
    assert refused(answer, 422, name)["errors"][0]["loc"][0] == "body"
    assert worker.tasks()["total"] == 0


def test_a_body_that_is_too_large_is_refused(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    refused(worker.post(job, json={"payload": {"angle": 1, "text": "x" * (1 << 20)}}), 413, "too-large")


def test_a_payload_comes_to_its_worker_as_it_was_sent(served: Stack) -> None:
    worker, job = Remote(served.apis[0].client).serving(schema={})
    payload = {
        "text": "ä 🙂 \u2028 \x00 \r\n \\ \"'",
        "": "an empty key",
        "numbers": [0, -0.5, 1e300, 12345678901234567890123, 2**53 + 1],
        "nested": {"list": [[], {}, None, True, False]},
        "__type__": "uuid",
    }
    task = worker.submit(job, payload)
    assert worker.claim_one()["payload"] == task["payload"] == worker.task(task)["payload"] == payload
    assert json.dumps(task["payload"]) == json.dumps(payload)  # the keys keep their order too


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nosuch"},
        {"properties": 1},
        {"$ref": "#/$defs/Nosuch"},
        {"$ref": "#"},
        {"$ref": "file:///etc/passwd"},
        {"properties": {"angle": {"pattern": "("}}},
        {"$schema": "https://json-schema.org/nosuch"},
    ],
)
def test_a_schema_that_checks_nothing_is_no_server_error(served: Stack, schema: Json) -> None:
    worker = Remote(served.apis[0].client).worker(fresh())
    answer = worker.put(schema=schema)
    assert answer.status_code in (201, 422), answer.text
    if answer.status_code == 201:
        posted = worker.post(answer.json()["full_name"], json={"payload": {"angle": "1"}})
        assert posted.status_code in (202, 422), posted.text
    else:
        assert refused(answer, 422, answer.json()["type"].rpartition("/")[2])["errors"][0]["loc"][:2] == [
            "body",
            "schema",
        ]


def test_a_schema_never_makes_the_service_ask_somebody_else(served: Stack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        somebody.setblocking(False)
        url = f"http://127.0.0.1:{somebody.getsockname()[1]}/schema.json"
        worker = Remote(served.apis[0].client).worker(fresh())
        answer = worker.put(schema={"properties": {"a": {"$ref": url}}})
        assert answer.status_code in (201, 422)
        if answer.status_code == 201:
            assert worker.post(answer.json()["full_name"], json={"payload": {"a": 1}}).status_code in (202, 422)
        with pytest.raises(BlockingIOError):  # nobody has called
            somebody.accept()


@pytest.mark.parametrize("job", ["{}:modifiers:Nosuch", "nosuch", "{}:nosuch:Rotate", "@global:modifiers:Nosuch"])
def test_a_job_that_nobody_registered_is_unknown(serving: tuple[Remote, str], job: str) -> None:
    worker, _ = serving
    refused(worker.post(job.format(worker.room), json={"payload": {"angle": 1}}), 404, "job-not-found")


def test_the_private_job_of_another_room_is_unknown(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    refused(worker.post(job, fresh(), json={"payload": {"angle": 1}}), 404, "job-not-found")
    assert worker.claim() is None


def test_a_room_that_cannot_be_is_refused(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    refused(worker.post(job, "a:b", json={"payload": {"angle": 1}}), 400, "invalid-room-id")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [{"x": number} for number in range(2_500)]),
        ({"pattern": "^(a+)+$"}, "a" * 27 + "!"),
        # some 25 s of work from 5 kB of schema
        ({"allOf": [{"contains": {"const": -n}, "minContains": 0} for n in range(100)]}, [1] * 250_000),
        ({"items": {"multipleOf": 1e-300}}, [1e300] * 100_000),
    ],
    ids=["unique items", "pattern", "contains", "multiples"],
)
def test_a_payload_that_is_slow_to_check_holds_nobody_up(served: Stack, schema: Json, value: Any) -> None:
    worker, job = Remote(served.apis[0].client).serving(schema={"properties": {"a": schema}})
    took: list[float] = []
    with ThreadPoolExecutor(1) as thread, httpx.Client(base_url=served.apis[0].url, timeout=60) as other:
        posted = thread.submit(worker.post, job, json={"payload": {"a": value}}, timeout=60)
        while not took or not posted.done():
            took.append(good(other.get("/livez"), 200).elapsed.total_seconds())
    answer = posted.result()
    if answer.status_code != 202:
        refused(answer, 422, "payload-invalid")
    assert max(took) < 1, sorted(took)[-3:]
