"""Web pages of other origins: those that JOBS_CORS_ORIGINS names may call everything, and no others (section 9)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.jobs import good
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.service import HttpProcess, Service
from tests.support.sse import Event, open_stream
from tests.support.stack import EMBEDDED, PREFORK, Stack, migrate
from tests.support.waiting import wait_until

PAGE = "https://page.example"
OTHER = "http://localhost:5173"
EVIL = "https://evil.example"
KEYS = json.dumps({"alice-key": {"identity": "alice"}})
UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
# what a page must be told of to be allowed to send or read it
SENT = ["content-type", "idempotency-key", "last-event-id", "prefer", "x-api-key"]
READ = {"location", "link", "retry-after", "preference-applied", "idempotent-replayed"}

pytestmark = pytest.mark.xdist_group("cors")


@pytest.fixture(scope="module")
def opened(start_stack: Callable[..., Stack]) -> Stack:
    """Without keys, for two origins; the settings spell them as people do."""
    return start_stack(EMBEDDED, JOBS_CORS_ORIGINS="https://Page.example:443/, http://localhost:5173")


@pytest.fixture(scope="module")
def keyed(start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(EMBEDDED, JOBS_CORS_ORIGINS=PAGE, JOBS_API_KEYS=KEYS)


@pytest.fixture(scope="module")
def for_all(start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(EMBEDDED, JOBS_CORS_ORIGINS="*")


@contextmanager
def page_of(stack: Stack, origin: str, **headers: str) -> Generator[httpx.Client]:
    """A browser's page: every request says where it comes from."""
    with httpx.Client(base_url=stack.apis[0].url, headers={"Origin": origin, **headers}, timeout=30) as client:
        yield client


def may_read(answer: httpx.Response, origin: str = PAGE) -> bool:
    """A browser would hand the answer to the page, and a cache would not hand it to another."""
    assert vary(answer).count("origin") == 1, answer.headers
    return answer.headers.get("access-control-allow-origin") == origin


def vary(answer: httpx.Response) -> list[str]:
    return [word.strip().lower() for word in answer.headers.get("vary", "").split(",")]


def preflight(client: httpx.Client, method: str, path: str, *headers: str) -> httpx.Response:
    asks = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": ", ".join(headers)}
    return client.options(path, headers=asks)


@pytest.mark.parametrize("service", ["opened", "keyed"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/compute"),
        ("POST", f"/api/v1/jobs/{UNKNOWN}/$cancel"),
        ("DELETE", f"/api/v1/jobs/{UNKNOWN}"),
        ("PATCH", "/api/v1/queues/jobs"),
        ("GET", f"/api/v1/jobs/{UNKNOWN}/$stream"),
    ],
)
def test_an_allowed_page_may_send_every_header_with_every_method(
    request: pytest.FixtureRequest, service: str, method: str, path: str
) -> None:
    with page_of(request.getfixturevalue(service), PAGE) as client:
        answer = good(preflight(client, method, path, *SENT), 200)
    assert may_read(answer)
    assert method in answer.headers["access-control-allow-methods"]
    assert {each.strip() for each in answer.headers["access-control-allow-headers"].split(",")} >= set(SENT)
    assert answer.headers["access-control-allow-credentials"] == "true"


def test_each_of_several_origins_is_allowed(opened: Stack) -> None:
    for origin in (PAGE, OTHER):
        with page_of(opened, origin) as client:
            assert may_read(good(client.get("/api/v1/jobs"), 200), origin)
            assert may_read(good(preflight(client, "POST", "/api/v1/compute"), 200), origin)


def test_an_allowed_page_may_read_what_the_headers_say(opened: Stack) -> None:
    note = "/api/v1/tasks/sample.note"
    with page_of(opened, PAGE, **{"Idempotency-Key": "once"}) as client:
        first, again = (client.post(note, json={}) for _ in range(2))
        waited = client.post(note, json={"mark": "x"}, headers={"Idempotency-Key": "2", "Prefer": "wait=20"})
        listed = client.get("/api/v1/jobs", params={"limit": 1})
    assert (first.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert (waited.status_code, waited.headers["preference-applied"]) == (200, "wait")
    assert 'rel="next"' in listed.headers["link"]
    for answer in (first, again, waited, listed):
        assert may_read(answer)
        exposed = {each.strip().lower() for each in answer.headers["access-control-expose-headers"].split(",")}
        assert exposed >= READ


def test_an_allowed_page_follows_a_job_to_its_end(opened: Stack) -> None:
    job = opened.jobs.submit("note")
    with page_of(opened, PAGE) as client, open_stream(client, f"/api/v1/jobs/{job}/$stream") as stream:
        assert may_read(stream.response)
        last: Event = stream.rest()[-1]
        assert last.status == "completed"
        over = client.get(f"/api/v1/jobs/{job}/$stream", headers={"Last-Event-ID": str(last.id)})
    assert over.status_code == 204
    assert may_read(over)


def test_an_allowed_page_follows_all_jobs_and_the_health(opened: Stack) -> None:
    with page_of(opened, PAGE) as client:
        for path in ("/api/v1/jobs/$stream", "/health/$stream"):
            with open_stream(client, path) as stream:
                assert stream.response.status_code == 200
                assert may_read(stream.response)


def test_an_allowed_page_may_read_why_it_was_refused(opened: Stack) -> None:
    with page_of(opened, PAGE) as client:
        refusals = {
            400: client.get("/api/v1/jobs/not-an-id/$stream"),
            404: client.get(f"/api/v1/jobs/{UNKNOWN}/$stream"),
            405: client.put("/api/v1/jobs"),
            413: client.post("/api/v1/compute", content=b" " * (1 << 21), headers={"Content-Type": "application/json"}),
            422: client.get(f"/api/v1/jobs/{UNKNOWN}/$stream", params={"poll_interval": "0"}),
        }
    for status, answer in refusals.items():
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert may_read(answer), status


def test_with_keys_an_allowed_page_may_read_that_it_needs_one(keyed: Stack) -> None:
    with page_of(keyed, PAGE) as client:
        for path in ("/api/v1/jobs", f"/api/v1/jobs/{UNKNOWN}/$stream"):
            assert client.get(path).status_code == 401
            assert may_read(client.get(path))
        assert may_read(good(client.get("/api/v1/jobs", headers={"X-API-Key": "alice-key"}), 200))


def test_without_keys_a_page_of_another_origin_gets_nothing(opened: Stack) -> None:
    with page_of(opened, EVIL) as client:
        answers = [
            client.get("/api/v1/jobs"),
            client.post("/api/v1/tasks/sample.note", json={}),
            client.get("/health/$stream"),
            preflight(client, "POST", "/api/v1/compute", *SENT),
        ]
    for answer in answers:
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:servicekit:error:forbidden")
        assert "access-control-allow-origin" not in answer.headers


def test_with_keys_a_page_of_another_origin_may_not_read_the_answer(keyed: Stack) -> None:
    with page_of(keyed, EVIL, **{"X-API-Key": "alice-key"}) as client:
        assert not may_read(good(client.get("/api/v1/jobs"), 200), EVIL)
        answer = client.options("/api/v1/compute", headers={"Access-Control-Request-Method": "POST"})
        assert not may_read(answer, EVIL)
        assert "access-control-allow-methods" not in answer.headers


def test_caches_are_told_of_the_difference_also_in_answers_to_no_page(opened: Stack) -> None:
    answer = good(opened.jobs.client.get("/api/v1/jobs"), 200)
    assert vary(answer) == ["origin"]
    assert "access-control-allow-origin" not in answer.headers


def test_a_star_allows_every_page_but_no_credentials(for_all: Stack) -> None:
    for origin in (PAGE, EVIL, "null"):
        with page_of(for_all, origin) as client:
            for answer in (client.get("/api/v1/jobs"), preflight(client, "POST", "/api/v1/compute", *SENT)):
                assert good(answer, 200).headers["access-control-allow-origin"] == "*"
                assert "access-control-allow-credentials" not in answer.headers
            job = client.post("/api/v1/tasks/sample.note", json={}).json()["job_id"]
            with open_stream(client, f"/api/v1/jobs/{job}/$stream") as stream:
                assert stream.response.headers["access-control-allow-origin"] == "*"
                assert stream.rest()[-1].status == "completed"


def test_a_page_of_the_internet_that_is_named_may_reach_a_service_on_this_machine(opened: Stack) -> None:
    with page_of(opened, PAGE, **{"Access-Control-Request-Private-Network": "true"}) as client:
        answer = good(preflight(client, "POST", "/api/v1/compute"), 200)
    assert answer.headers["access-control-allow-private-network"] == "true"
    with page_of(opened, EVIL, **{"Access-Control-Request-Private-Network": "true"}) as client:
        assert preflight(client, "POST", "/api/v1/compute").status_code == 403


def test_a_method_that_no_path_has_is_a_problem(opened: Stack) -> None:
    with page_of(opened, PAGE) as client:
        answer = preflight(client, "BREW", "/api/v1/compute")
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


def test_without_the_setting_no_page_of_another_origin_is_told_anything(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(EMBEDDED).start()
    with page_of(stack, PAGE) as client:
        assert client.get("/api/v1/jobs").status_code == 403
    assert "vary" not in stack.jobs.client.get("/api/v1/jobs").headers


def test_an_outage_is_told_to_an_allowed_page(
    new_stack: Callable[..., Stack], own_postgres: Callable[[], PostgresServer]
) -> None:
    server = own_postgres()
    env = {"DATABASE_URL": server.new_database(migrate), "JOBS_CORS_ORIGINS": PAGE}
    stack = new_stack(PREFORK, **env).start(worker=False)
    server.stop()
    with page_of(stack, PAGE) as client:
        wait_until(lambda: client.get("/health").status_code == 503, "its last look is of after the stop")
        for path in ("/api/v1/jobs", f"/api/v1/jobs/{UNKNOWN}/$stream", "/health"):
            answer = client.get(path)
            assert (answer.status_code, may_read(answer)) == (503, True)
            assert "retry-after" in answer.headers


def test_an_error_that_nobody_foresaw_is_told_to_an_allowed_page(
    new_service: Callable[..., Service], processes: Processes
) -> None:
    service = new_service(JOBS_CORS_ORIGINS=PAGE, PYTHONUNBUFFERED="1")
    service.module(
        "mine",
        """
        from fastapi import APIRouter
        from celery_jobs.api import BaseServiceBuilder, ServiceInfo

        router = APIRouter()

        @router.get("/boom")
        async def boom() -> None:
            raise RuntimeError("the secret of the house")

        builder = BaseServiceBuilder(info=ServiceInfo(id="mine", display_name="Mine"))
        app = builder.with_health().include_router(router).build()
        """,
    )
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "mine:app", "--port", str(port)]
    process = processes.start(command, name="mine", env=service.env, cwd=service.folder)
    served = HttpProcess(process, f"http://127.0.0.1:{port}")
    served.wait_ready()
    answer = served.client.get("/boom", headers={"Origin": PAGE})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert may_read(answer)
    assert "secret" not in answer.text
    process.wait_for_log("the secret of the house", 10)
    served.client.close()
