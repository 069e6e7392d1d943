"""A scheduler that is not ours behind the whole HTTP API: what its surface has is served, what it has not is said."""

from __future__ import annotations

import asyncio
import inspect
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openapi_spec_validator import OpenAPIV31SpecValidator

from celery_jobs.records.settings import ApiKey
from celery_jobs.tasks import job
from tests.support.plugged import ByHand, plugged, problem_of, serving

UNKNOWN = "01JQRS7X6ZJ8T3V5W7Y9A1B3C5"


@job(name="plugged.book")
async def book(when: datetime, seats: int = 1) -> str:
    """Arguments of which JSON has no types."""
    return f"{seats} at {when:%H:%M}"


@pytest.fixture
def scheduler() -> ByHand:
    return ByHand()


@pytest.fixture
def app(scheduler: ByHand, tmp_path: Path) -> FastAPI:
    return plugged(scheduler, data_dir=tmp_path / "data").with_jobs().with_health().build()


# --- life


async def test_it_starts_first_is_drained_last_and_nothing_of_ours_runs_beside_it(scheduler: ByHand, tmp_path: Path):
    async def starts(app: FastAPI) -> None:
        scheduler.told.append("hook")

    async def stops(app: FastAPI) -> None:
        scheduler.told.append("last hook")

    built = plugged(scheduler, data_dir=tmp_path / "data").with_jobs(max_concurrency=3, shutdown_timeout=7)
    app = built.on_startup(starts).on_shutdown(stops).build()
    async with serving(app):
        assert app.state.scheduler is scheduler
        assert scheduler.told == [("start",), ("set_max_concurrency", 3), "hook"]
        assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"sweep of remote workers"})
    assert scheduler.told[3:] == ["last hook", ("shutdown", 7.0)]
    assert not (tmp_path / "data").exists(), "no database, no lock"


async def test_what_a_deployment_sets_wins_over_the_program(scheduler: ByHand):
    app = plugged(scheduler, shutdown_timeout_seconds=2, max_concurrency=4).with_jobs(shutdown_timeout=7).build()
    async with serving(app):
        pass
    assert scheduler.told == [("start",), ("set_max_concurrency", 4), ("shutdown", 2.0)]


async def test_a_scheduler_without_a_limit_starts_all_the_same(scheduler: ByHand, caplog: pytest.LogCaptureFixture):
    scheduler.fails["set_max_concurrency"] = NotImplementedError()
    async with serving(plugged(scheduler).with_jobs(max_concurrency=3).build()):
        assert "max_concurrency=3" in caplog.text


async def test_a_second_signal_waits_no_longer_for_its_shutdown(scheduler: ByHand, caplog: pytest.LogCaptureFixture):
    scheduler.hangs.add("shutdown")
    app = plugged(scheduler).with_jobs(shutdown_timeout=1000).build()
    async with asyncio.timeout(10):
        async with serving(app):
            app.state.service.hurry()
    assert "not shut down in time" in caplog.text


async def test_what_is_no_scheduler_is_refused_where_it_was_made():
    with pytest.raises(TypeError, match="_create_scheduler must return a Scheduler, not dict"):
        async with serving(plugged({}).with_jobs().build()):
            pass


# --- submits


async def test_arguments_are_checked_and_arrive_with_their_types(scheduler: ByHand, app: FastAPI):
    async with serving(app) as client:
        listed = {task["name"]: task for task in (await client.get("/api/v1/tasks")).json()}
        assert listed["plugged.book"]["coroutine"]
        wrong = await client.post("/api/v1/tasks/plugged.book", json={"when": "soon"})
        assert problem_of(wrong, 422) == "validation-failed"
        assert problem_of(await client.post("/api/v1/tasks/nothing", json={}), 404) == "not-found"
        assert not [each for each in scheduler.told if each[0] == "add_job"]
        right = await client.post("/api/v1/tasks/plugged.book", json={"when": "2026-11-30T12:00:00Z"})
        assert (right.status_code, right.headers["location"]) == (202, right.json()["poll_url"])
    ((_, target, args, kwargs),) = [each for each in scheduler.told if each[0] == "add_job"]
    assert inspect.iscoroutinefunction(target), "a scheduler can tell how to run it"
    assert await target(*args, **kwargs) == "1 at 12:00"


@pytest.mark.parametrize(
    ("query", "headers", "named"),
    [
        ("?priority=5", {}, "priority"),
        ("?tag=a&tag=b", {}, "tag"),
        ("?run_at=2100-01-01T00:00:00Z", {}, "run_at"),
        ("?expires_in_seconds=5", {}, "expires_in_seconds"),
        ("", {"Idempotency-Key": "once"}, "Idempotency-Key"),
    ],
)
async def test_an_option_that_the_surface_has_no_word_for_is_refused(
    scheduler: ByHand, app: FastAPI, query: str, headers: dict[str, str], named: str
):
    async with serving(app) as client:
        for path, body in (("compute", {"duration": 1}), ("tasks/compute", {"duration": 1})):
            response = await client.post(f"/api/v1/{path}{query}", json=body, headers=headers)
            assert problem_of(response, 501) == "not-supported"
            assert f"with {named} is not possible" in response.json()["detail"]
    assert scheduler.records == {}


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RuntimeError("shut down"), 503, "unavailable"),
        (NotImplementedError(), 501, "not-supported"),
        (ValueError("secret"), 500, "internal"),
        (KeyError("secret"), 500, "internal"),
        (RecursionError("secret"), 500, "internal"),
    ],
)
async def test_what_a_submit_raises_is_a_problem(
    scheduler: ByHand, app: FastAPI, error: Exception, status: int, kind: str
):
    scheduler.fails["add_job"] = error
    async with serving(app) as client:
        response = await client.post("/api/v1/compute", json={"duration": 1})
        assert problem_of(response, status) == kind
        assert "secret" not in response.text
        assert ("retry-after" in response.headers) == (status == 503)


async def test_nothing_is_submitted_once_the_service_stops(scheduler: ByHand, app: FastAPI):
    async with serving(app) as client:
        app.state.service.begin_shutdown()  # as at SIGTERM
        response = await client.post("/api/v1/compute", json={"duration": 1})
        assert problem_of(response, 503) == "unavailable"
    assert scheduler.records == {}


async def test_a_submit_is_answered_though_its_end_cannot_be_waited_for(
    scheduler: ByHand, app: FastAPI, caplog: pytest.LogCaptureFixture
):
    scheduler.fails["get_record"] = OSError("the scheduler's own trouble")
    async with serving(app) as client:
        response = await client.post("/api/v1/compute", json={"duration": 1}, headers={"Prefer": "wait=5"})
        assert response.status_code == 202
    assert "the scheduler's own trouble" in caplog.text


# --- what it does not have


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"/api/v1/jobs/{UNKNOWN}/$retry", None),
        ("GET", "/api/v1/queues", None),
        ("GET", "/api/v1/queues/jobs", None),
        ("PATCH", "/api/v1/queues/jobs", {"paused": True}),
        ("PATCH", "/api/v1/queues/jobs", {"paused": True, "max_concurrency": 3}),
        ("GET", "/v1/me", None),
        ("GET", "/v1/joblib/workers", None),
        ("POST", "/v1/joblib/sweep", None),
        ("POST", "/v1/joblib/tasks/claim", {}),
        ("PUT", "/v1/joblib/rooms/room/jobs", {"category": "modifiers", "name": "Rotate"}),
    ],
)
async def test_what_it_cannot_do_is_501_and_documented(
    scheduler: ByHand, app: FastAPI, method: str, path: str, body: Any
):
    async with serving(app) as client:
        response = await client.request(method, path, json=body)
        assert problem_of(response, 501) == "not-supported"
        assert (response.json()["title"], response.json()["instance"]) == ("Not Supported", path)
        documented = path.replace(UNKNOWN, "{job_id}").replace("queues/jobs", "queues/{name}")
        paths = (await client.get("/openapi.json")).json()["paths"]
        operation = paths[documented.replace("rooms/room", "rooms/{room_id}")][method.lower()]
        assert "501" in operation["responses"]
        if "joblib" in path:
            page = await client.get(response.json()["type"])
            assert (page.status_code, "remote workers" in page.text) == (200, True)
    assert ("set_max_concurrency", 3) not in scheduler.told


def test_the_document_is_valid(app: FastAPI):
    assert [str(error) for error in OpenAPIV31SpecValidator(app.openapi()).iter_errors()] == []


async def test_its_limit_is_that_of_the_default_queue(scheduler: ByHand, app: FastAPI):
    scheduler.put("running")
    scheduler.put("completed")
    async with serving(app) as client:
        changed = await client.patch("/api/v1/queues/jobs", json={"max_concurrency": 5})
        expected = {"name": "jobs", "max_concurrency": 5, "paused": False, "workers": 0}
        assert changed.json() == {**expected, "pending": 0, "running": 1, "canceling": 0}
        assert (await client.patch("/api/v1/queues/jobs", json={"max_concurrency": None})).status_code == 200
        assert problem_of(await client.patch("/api/v1/queues/x", json={"max_concurrency": 5}), 404) == "not-found"
        wrong = await client.patch("/api/v1/queues/jobs", json={"max_concurrency": 0})
        assert problem_of(wrong, 422) == "validation-failed"
    assert [each for each in scheduler.told if each[0] == "set_max_concurrency"] == [
        ("set_max_concurrency", 5),
        ("set_max_concurrency", None),
    ]


# --- health, metrics, keys


async def test_health_is_whether_the_scheduler_answers(scheduler: ByHand, app: FastAPI):
    async with serving(app) as client:
        healthy = (await client.get("/health")).json()
        assert healthy == {
            "status": "healthy",
            "checks": {"scheduler": {"state": "healthy", "message": "answers"}},
        }
        scheduler.fails["get_status"] = OSError("secret")

        async def unhealthy() -> httpx.Response | None:
            response = await client.get("/health")  # a look is kept for a moment
            return response if response.status_code == 503 else None

        async with asyncio.timeout(5):
            while (found := await unhealthy()) is None:
                pass
        assert found.json()["checks"]["scheduler"]["message"] == "does not answer: OSError"
        for path in ("/livez", "/readyz"):
            assert (await client.get(path)).status_code == 200


async def test_metrics_leave_out_what_only_sql_counts(scheduler: ByHand):
    async with serving(plugged(scheduler).with_jobs().with_monitoring().build()) as client:
        await client.post("/api/v1/compute", json={"duration": 1})
        text = (await client.get("/metrics")).text
    assert 'jobs_submitted_total{queue="jobs",task="compute"}' in text
    assert "sse_streams" in text
    for name in ("database_up", "workers ", "jobs{"):
        assert name not in text


async def test_keys_hold_here_too(scheduler: ByHand):
    keys = {"reads": ApiKey(identity="rita", scopes=frozenset({"read"}))}
    async with serving(plugged(scheduler, api_keys=keys).with_jobs().build()) as client:
        assert (await client.get("/api/v1/jobs")).status_code == 401
        key = {"X-API-Key": "reads"}
        assert (await client.get("/api/v1/jobs", headers=key)).status_code == 200
        assert (await client.post("/api/v1/compute", json={"duration": 1}, headers=key)).status_code == 403
        assert (await client.patch("/api/v1/queues/jobs", json={"max_concurrency": 1}, headers=key)).status_code == 403


async def test_an_answer_that_is_no_record_is_a_fault_of_the_scheduler(scheduler: ByHand, app: FastAPI):
    job_id = scheduler.put()
    scheduler.records[job_id] = {"id": str(job_id)}  # type: ignore[assignment]
    async with serving(app) as client:
        assert problem_of(await client.get(f"/api/v1/jobs/{job_id}"), 500) == "internal"
        with pytest.raises(TypeError, match="must answer with a JobRecord or a subclass, not dict"):
            await app.state.service.record(str(job_id))
