"""Jobs that remote workers register in rooms (contract, section 8): made once, found again, gone in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import good
from tests.support.remote import Json, Remote, fresh, refused
from tests.support.stack import EMBEDDED, PREFORK, Stack

pytestmark = pytest.mark.xdist_group("remote-jobs")

ANGLE: Json = {"type": "object", "properties": {"angle": {"type": "number"}}, "required": ["angle"]}


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param, worker=False)


@pytest.fixture
def worker(served: Stack) -> Remote:
    """A new worker in a new room."""
    return Remote(served.apis[0].client).worker()


def names(page: Json) -> list[str]:
    return [job["full_name"] for job in page["items"]]


def test_the_first_registration_creates_a_job_and_the_second_finds_it(worker: Remote) -> None:
    first = worker.put("Rotate", schema=ANGLE)
    job = good(first, 201).json()
    UUID(job["id"])
    assert job == {
        "id": job["id"],
        "room_id": worker.room,
        "category": "modifiers",
        "name": "Rotate",
        "full_name": f"{worker.room}:modifiers:Rotate",
        "schema": ANGLE,
        "workers": [worker.worker_id],
    }
    assert good(worker.put("Rotate", schema=ANGLE), 200).json() == job
    reordered = {"required": ["angle"], "properties": {"angle": {"type": "number"}}, "type": "object"}
    assert good(worker.put("Rotate", schema=reordered), 200).json()["id"] == job["id"]


def test_another_worker_joins_the_same_job(worker: Remote) -> None:
    job = worker.register()
    other = worker.worker()
    again = good(other.put(), 200).json()
    assert again["id"] == job["id"]
    assert sorted(again["workers"]) == sorted([str(worker.worker_id), str(other.worker_id)])
    assert worker.job(job["full_name"]).json() == again


def test_without_a_worker_id_the_identity_is_the_worker(served: Stack) -> None:
    me = Remote(served.apis[0].client)
    assert good(me.put(), 201).json()["workers"] == [good(me.client.get("/v1/me"), 200).json()["id"]]
    assert good(me.put(worker_id=None), 200)


def test_the_schema_may_be_left_out_and_is_then_empty(worker: Remote) -> None:
    assert good(worker.put("Bare"), 201).json()["schema"] == {}
    assert good(worker.put("Bare", schema={}), 200)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ANGLE, {}),
        ({}, ANGLE),
        (ANGLE, {**ANGLE, "required": []}),
        ({"default": 1}, {"default": True}),  # equal in Python, not in JSON
        ({"properties": {"a": {}, "b": {}}}, {"properties": {"a": {}}}),
        ({"enum": ["a", "b"]}, {"enum": ["b", "a"]}),
    ],
)
def test_another_schema_is_a_conflict_and_changes_nothing(worker: Remote, first: Json, second: Json) -> None:
    job = worker.register(schema=first)
    other = worker.worker()
    refused(other.put(schema=second), 409, "schema-conflict")
    assert worker.job(job["full_name"]).json() == job
    assert other.claim() is None


def test_the_same_name_in_another_room_is_another_job(worker: Remote) -> None:
    here = worker.register(schema=ANGLE)
    there = worker.register(room=fresh(), schema={})
    assert (here["id"] == there["id"], there["schema"]) == (False, {})


@pytest.mark.parametrize("category", ["nosuch", "", "Modifiers", "modifiers ", "a:b", "modifiers\x00"])
def test_a_category_that_is_not_allowed_is_a_bad_request(worker: Remote, category: str) -> None:
    refused(worker.put(category=category), 400, "invalid-category")
    assert worker.jobs()["total"] == worker.jobs("@global")["total"]


@pytest.mark.parametrize("category", ["modifiers", "selections", "analysis"])
def test_three_categories_are_allowed_by_default(worker: Remote, category: str) -> None:
    assert good(worker.put(category=category), 201).json()["full_name"] == f"{worker.room}:{category}:Rotate"


@pytest.mark.parametrize("room", ["@other", "a@b", "@", "@Global", "@global ", "a:b", ":", "a\x00b", "@global:x"])
def test_a_room_with_a_reserved_character_is_a_bad_request(worker: Remote, room: str) -> None:
    refused(worker.put(room=room), 400, "invalid-room-id")


@pytest.mark.parametrize("room", ["Räume 1", "部屋", "🙂", "a.b", "a?b#c", "50%", "a+b", "a&b=c", "it's", "x" * 200])
def test_a_room_may_have_any_other_name(worker: Remote, room: str) -> None:
    room += fresh()
    job = good(worker.put(room=room), 201).json()
    assert job["room_id"] == room
    assert worker.job(job["full_name"], room).json() == job
    assert job["full_name"] in names(worker.jobs(room))
    task = worker.submit(job["full_name"], room=room)
    assert (task["room_id"], worker.claim_one()["id"]) == (room, task["id"])


@pytest.mark.parametrize("path", ["a%2Fb", "%2F", "%2e%2e", "%FF", "%ED%A0%80", "%00", "x" * 5000])
def test_an_odd_path_is_never_a_server_error(worker: Remote, path: str) -> None:
    body = {"category": "modifiers", "name": "Rotate", **worker.me}
    for method, rest, sent in (
        ("PUT", f"/rooms/{path}/jobs", body),
        ("GET", f"/rooms/{path}/jobs", None),
        ("GET", f"/rooms/{worker.room}/jobs/{path}", None),
        ("POST", f"/rooms/{path}/tasks/{path}", {"payload": {}}),
    ):
        answer = worker.send(method, rest, json=sent)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert answer.json()["type"].startswith("/v1/problems/")


@pytest.mark.parametrize("name", ["a:b", "a/b", ":", "/", "", "modifiers:Rotate", 7, None, True, ["Rotate"], "a\x00b"])
def test_a_name_that_could_not_be_part_of_a_full_name_is_refused(worker: Remote, name: Any) -> None:
    fault = refused(worker.put(name), 422, "validation-failed")["errors"][0]
    assert fault["loc"] == ["body", "name"]


@pytest.mark.parametrize(
    "name", ["Drehen", "dréh ën", "回転", "🙂", "a.b-c_d", "50%", "a%2Fb", "a?b", "a#b", "..", "@x"]
)
def test_a_name_may_hold_anything_else(worker: Remote, name: str) -> None:
    job = good(worker.put(name), 201).json()
    assert job["full_name"] == f"{worker.room}:modifiers:{name}"
    assert good(worker.job(job["full_name"]), 200).json() == job
    assert good(worker.put(name), 200).json() == job
    answer = good(worker.post(job["full_name"], json={"payload": {}}), 202)
    assert answer.json()["job_name"] == worker.claim_one()["job_name"] == job["full_name"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "Rotate"}, "category"),
        ({"category": "modifiers"}, "name"),
        ({"category": "modifiers", "name": "Rotate", "schema": []}, "schema"),
        ({"category": "modifiers", "name": "Rotate", "schema": "{}"}, "schema"),
        ({"category": "modifiers", "name": "Rotate", "nosuch": 1}, "nosuch"),
        ({"category": 1, "name": "Rotate"}, "category"),
        ({"category": "modifiers", "name": "Rotate", "worker_id": 1}, "worker_id"),
    ],
)
def test_a_body_that_does_not_fit_names_the_field(worker: Remote, body: Json, field: str) -> None:
    answer = worker.send("PUT", f"/rooms/{worker.room}/jobs", json=body)
    errors = refused(answer, 422, "validation-failed")["errors"]
    assert [fault["loc"] for fault in errors] == [["body", field]]


def test_a_worker_that_nobody_knows_registers_nothing(worker: Remote) -> None:
    refused(worker.put(worker_id=fresh("worker")), 404, "worker-not-found")
    refused(worker.job(f"{worker.room}:modifiers:Rotate"), 404, "job-not-found")


def test_a_list_holds_the_jobs_of_the_room_and_the_global_ones(worker: Remote) -> None:
    mine = worker.register("Mine")["full_name"]
    foreign = worker.register("Foreign", room=fresh())["full_name"]
    everywhere = worker.register(fresh("Everywhere"), room="@global")["full_name"]
    listed = names(worker.jobs(limit=1000))
    assert {mine, everywhere} <= set(listed)
    assert foreign not in listed
    only = names(worker.jobs("@global", limit=1000))
    assert everywhere in only
    assert all(name.startswith("@global:") for name in only)
    assert sorted(listed) == sorted([mine, *only])


def test_pages_hold_each_job_once(worker: Remote) -> None:
    registered = {worker.register(f"Job{number}")["full_name"] for number in range(7)}
    whole = worker.jobs()
    assert (whole["limit"], whole["offset"]) == (100, 0)
    pages = [worker.jobs(limit=3, offset=offset) for offset in range(0, whole["total"] + 3, 3)]
    assert [name for page in pages for name in names(page)] == names(worker.jobs(limit=1000))
    assert registered <= set(names(worker.jobs(limit=1000)))
    assert {page["total"] for page in pages} == {whole["total"]}
    assert [(page["limit"], page["offset"]) for page in pages[:2]] == [(3, 0), (3, 3)]
    assert (pages[-1]["items"], names(worker.jobs(offset=10**6))) == ([], [])


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=-1", "limit=abc", "limit=", "offset=-1", "offset=x", "nosuch=1"]
)
def test_a_page_that_cannot_be_is_refused(worker: Remote, query: str) -> None:
    for path in (f"/rooms/{worker.room}/jobs", f"/rooms/{worker.room}/tasks", "/workers"):
        fault = refused(worker.send("GET", f"{path}?{query}"), 422, "validation-failed")["errors"][0]
        assert fault["loc"] == ["query", query.partition("=")[0]]


def test_a_private_job_is_not_there_for_another_room(worker: Remote) -> None:
    private = worker.register()["full_name"]
    shared = worker.register(fresh("Shared"), room="@global")
    elsewhere = fresh()
    refused(worker.job(private, elsewhere), 404, "job-not-found")
    refused(worker.job(private, "@global"), 404, "job-not-found")
    for room in (worker.room, elsewhere, "@global"):
        assert good(worker.job(shared["full_name"], room), 200).json() == shared


@pytest.mark.parametrize(
    "name", ["Rotate", "{}:Rotate", "{}:modifiers", "{}:modifiers:", "{}:modifiers:Rotate:x", ":::"]
)
def test_what_is_no_full_name_names_no_job(worker: Remote, name: str) -> None:
    worker.register("Rotate")
    refused(worker.job(name.format(worker.room)), 404, "job-not-found")


def test_a_job_goes_with_its_last_worker_and_may_come_back_with_another_schema(worker: Remote) -> None:
    job = worker.register(schema=ANGLE)
    task = worker.submit(job["full_name"], {"angle": 1})
    worker.claim_one()
    worker.report(task, "running")
    done = worker.report(task, "completed", result=1)
    good(worker.leave(), 204)
    refused(worker.job(job["full_name"]), 404, "job-not-found")
    assert job["full_name"] not in names(worker.jobs(limit=1000))
    refused(worker.post(job["full_name"], json={"payload": {"angle": 1}}), 404, "job-not-found")
    successor = worker.worker()
    again = good(successor.put(schema={"type": "object"}), 201).json()
    assert (again["schema"], again["workers"]) == ({"type": "object"}, [successor.worker_id])
    assert names(successor.jobs()).count(job["full_name"]) == 1
    old = successor.task(task)
    assert (old["status"], old["job_name"], old["result"], old["completed_at"]) == (
        "completed",
        job["full_name"],
        1,
        done["completed_at"],
    )
