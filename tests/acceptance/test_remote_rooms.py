"""Lists of the jobs in a room, and registrations at the same moment (contract, section 8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import good
from tests.support.remote import Json, Remote, fresh, refused
from tests.support.stack import PREFORK, SQLITE, Stack

pytestmark = pytest.mark.xdist_group("remote-rooms")

ANGLE: Json = {"type": "object", "properties": {"angle": {"type": "number"}}, "required": ["angle"]}


@pytest.fixture(scope="module", params=each(PREFORK, SQLITE), ids=str)
def twins(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    """Two API processes on one database."""
    return start_stack(request.param, worker=False, apis=2)


@pytest.fixture
def worker(twins: Stack) -> Remote:
    """A new worker in a new room."""
    return Remote(twins.apis[0].client).worker()


def names(page: Json) -> list[str]:
    return [job["full_name"] for job in page["items"]]


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


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=-1", "limit=abc", "limit=", "offset=-1", "offset=x"])
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


def at_once(calls: list[Callable[[], httpx.Response]]) -> list[httpx.Response]:
    """What each answers when all are made at the same moment."""
    barrier = threading.Barrier(len(calls))

    def made(call: Callable[[], httpx.Response]) -> httpx.Response:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(made, calls))


def test_of_registrations_at_the_same_moment_one_creates_and_the_others_find_it(twins: Stack) -> None:
    workers = [Remote(twins.apis[number % 2].client).worker(fresh()) for number in range(4)]
    for _ in range(10):
        name = fresh("Race")
        answers = at_once([lambda each=each, name=name: each.put(name, "@global", schema=ANGLE) for each in workers])
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201], [a.text for a in answers]
        assert len({answer.json()["id"] for answer in answers}) == 1
        job = workers[0].job(answers[0].json()["full_name"]).json()
        assert sorted(job["workers"]) == sorted(str(each.worker_id) for each in workers)


def test_of_two_schemas_at_the_same_moment_one_wins(twins: Stack) -> None:
    workers = [Remote(api.client).worker(fresh()) for api in twins.apis]
    for number in range(10):
        schemas = [{"title": "a"}, {"title": "b"}]
        calls = [
            lambda w=w, s=s, number=number: w.put(f"Race{number}", workers[0].room, schema=s)
            for w, s in zip(workers, schemas, strict=True)
        ]
        answers = at_once(calls)
        assert sorted(answer.status_code for answer in answers) == [201, 409]
        won = next(place for place, answer in enumerate(answers) if answer.status_code == 201)
        refused(answers[1 - won], 409, "schema-conflict")
        job = workers[0].job(f"{workers[0].room}:modifiers:Race{number}").json()
        assert (job["schema"], job["workers"]) == (schemas[won], [workers[won].worker_id])
