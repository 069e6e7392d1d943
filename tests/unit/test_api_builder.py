"""The builder: what it refuses, what it puts around the routes, and in which order things live and die."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from prometheus_client.parser import text_string_to_metric_families

from celery_jobs.api import BaseServiceBuilder, CeleryScheduler, JobOptions, ServiceInfo
from celery_jobs.records.errors import SettingsError
from celery_jobs.records.settings import ApiKey, Settings

INFO = ServiceInfo(id="test", display_name="Test")


def builder(folder: Path, **settings: Any) -> BaseServiceBuilder:
    settings = {"data_dir": folder, "shutdown_timeout_seconds": 0, **settings}
    return BaseServiceBuilder(info=INFO, settings=Settings(**settings))


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8000")


@pytest.mark.parametrize(
    "options",
    [
        *({"max_concurrency": value} for value in (0, -1, True, "5", 1.5)),
        *({"shutdown_timeout": value} for value in (-1, float("nan"), float("inf"), "10", True, None)),
        *({"prefix": value} for value in ("jobs", "/", "/jobs/", "")),
    ],
)
def test_a_bad_value_is_refused_where_it_is_written(options: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(options))):
        BaseServiceBuilder(info=INFO).with_jobs(**options)


def test_importing_the_names_of_the_package_loads_nothing_heavy():
    program = (
        "import celery_jobs.api, sys; print(sorted({'fastapi', 'celery', 'sqlalchemy', 'pydantic'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


async def test_hooks_run_while_the_scheduler_does(tmp_path: Path):
    told: list[str] = []

    def hook(name: str) -> Callable[[FastAPI], Any]:
        async def run(app: FastAPI) -> None:
            told.append(f"{name}: {(await app.state.health.look()).status}")

        return run

    built = builder(tmp_path).with_jobs().on_startup(hook("a")).on_startup(hook("b"))
    app = built.on_shutdown(hook("c")).on_shutdown(hook("d")).build()
    async with app.router.lifespan_context(app):
        told.append("served")
    assert told == ["a: healthy", "b: healthy", "served", "c: healthy", "d: healthy"]


async def test_a_scheduler_of_ones_own_is_plugged_in_and_drained(tmp_path: Path):
    told: list[object] = []

    class Told(CeleryScheduler):
        async def shutdown(self, timeout: float | None = None) -> None:
            await super().shutdown(timeout)
            told.append("drained")

    class Mine(BaseServiceBuilder):
        def _create_scheduler(self, job_options: JobOptions) -> CeleryScheduler:
            told.append(job_options)
            return Told(job_options.max_concurrency, settings=self._settings)

    settings = Settings(data_dir=tmp_path)
    app = Mine(info=INFO, settings=settings).with_jobs("/jobs", ["work"], 3, 0).build()
    assert not told, "nothing runs before the lifespan does"
    async with app.router.lifespan_context(app):
        assert isinstance(app.state.scheduler, Told)
        async with client_of(app) as client:
            assert (await client.get("/jobs")).json() == []
            assert (await client.get("/queues/jobs")).json()["max_concurrency"] == 3
    assert told == [JobOptions(prefix="/jobs", tags=["work"], max_concurrency=3, shutdown_timeout=0.0), "drained"]


async def test_a_router_of_ones_own_is_served_with_the_same_problems(tmp_path: Path):
    router = APIRouter()

    @router.get("/mine/{number}")
    async def mine(number: int) -> int:  # pyright: ignore[reportUnusedFunction]
        return number

    async with client_of(builder(tmp_path).include_router(router).build()) as client:
        assert (await client.get("/mine/5")).json() == 5
        assert (await client.get("/mine/x")).json()["type"] == "urn:servicekit:error:validation-failed"
        assert (await client.get("/api/v1/jobs")).status_code == 404


async def test_a_service_without_jobs_is_healthy_too(tmp_path: Path):
    app = builder(tmp_path / "unused").with_health().build()
    async with app.router.lifespan_context(app), client_of(app) as client:
        assert (await client.get("/health")).json() == {"status": "healthy", "checks": {}}
        assert (await client.get("/readyz")).status_code == 200
    assert not (tmp_path / "unused").exists()


async def test_metrics_are_served_where_they_are_asked_for(tmp_path: Path):
    app = builder(tmp_path / "silent").with_jobs().build()
    async with app.router.lifespan_context(app), client_of(app) as client:
        assert (await client.get("/metrics")).status_code == 404
    submitted: list[float] = []
    for name in ("first", "second"):  # a second service in one process counts on
        app = builder(tmp_path / name).with_jobs().with_monitoring().build()
        async with app.router.lifespan_context(app), client_of(app) as client:
            assert (await client.post("/api/v1/compute", json={"duration": 0.1})).status_code == 202
            answer = await client.get("/metrics")
        found = {family.name: family for family in text_string_to_metric_families(answer.text)}
        assert {"jobs_submitted", "jobs", "workers", "sse_streams", "database_up"} <= found.keys()
        samples = found["jobs_submitted"].samples
        submitted.append(sum(each.value for each in samples if each.labels["task"] == "compute"))
    assert submitted[1] == submitted[0] + 1
    app = builder(tmp_path / "unused").with_monitoring().build()
    async with app.router.lifespan_context(app), client_of(app) as client:
        answer = await client.get("/metrics")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert "jobs_submitted" in names
    assert names.isdisjoint({"jobs", "workers", "database_up"})


KEYS = {
    "reads": ApiKey(identity="rita", scopes=frozenset({"read"})),
    "submits": ApiKey(identity="sue", scopes=frozenset({"submit"})),
    "cancels": ApiKey(identity="carl", scopes=frozenset({"cancel"})),
    "rules": ApiKey(identity="anna", admin=True),
}
ANY_JOB = "/api/v1/jobs/01JQRS7X6ZJ8T3V5W7Y9A1B3C5"
ANY_TASK = "/v1/joblib/tasks/01JQRS7X6ZJ8T3V5W7Y9A1B3C5"
CALLS = [
    ("GET", "/api/v1/jobs", "reads"),
    ("GET", "/api/v1/jobs/$schema", "reads"),
    ("GET", "/api/v1/jobs/$stream?limit=1", "reads"),  # refused, since it would not end
    ("GET", ANY_JOB, "reads"),
    ("GET", f"{ANY_JOB}/$result", "reads"),
    ("GET", f"{ANY_JOB}/$stream", "reads"),
    ("GET", f"{ANY_JOB.replace('jobs', 'compute')}/result", "reads"),
    ("GET", "/api/v1/tasks", "reads"),
    ("GET", "/api/v1/queues", "reads"),
    ("GET", "/api/v1/queues/jobs", "reads"),
    ("POST", "/api/v1/compute", "submits"),
    ("POST", "/api/v1/tasks/compute", "submits"),
    ("POST", f"{ANY_JOB}/$retry", "submits"),
    ("POST", f"{ANY_JOB}/$cancel", "cancels"),
    ("DELETE", ANY_JOB, "cancels"),
    ("PATCH", "/api/v1/queues/jobs", "rules"),
    ("GET", "/v1/me", "reads"),
    ("GET", "/v1/joblib/rooms/room/jobs", "reads"),
    ("GET", "/v1/joblib/rooms/room/jobs/room:modifiers:Rotate", "reads"),
    ("GET", "/v1/joblib/rooms/room/tasks", "reads"),
    ("GET", "/v1/joblib/rooms/room/workers", "reads"),
    ("GET", ANY_TASK, "reads"),
    ("GET", "/v1/joblib/workers", "reads"),
    ("PUT", "/v1/joblib/rooms/room/jobs", "submits"),
    ("POST", "/v1/joblib/rooms/room/tasks/room:modifiers:Rotate", "submits"),
    ("POST", "/v1/joblib/tasks/claim", "submits"),
    ("POST", "/v1/joblib/workers", "submits"),
    ("PATCH", "/v1/joblib/workers/anna", "submits"),
    ("DELETE", "/v1/joblib/workers/anna", "submits"),
    ("PATCH", ANY_TASK, "submits cancels"),
]
IN_PATHS = {
    "01JQRS7X6ZJ8T3V5W7Y9A1B3C5": "{job_id}",
    "queues/jobs": "queues/{name}",
    "tasks/compute": "tasks/{name}",
    "rooms/room": "rooms/{room_id}",
    "room:modifiers:Rotate": "{job_name}",
    "workers/anna": "workers/{worker_id}",
    "joblib/tasks/{job_id}": "joblib/tasks/{task_id}",
}


async def test_every_call_needs_the_right_key(tmp_path: Path):
    app = builder(tmp_path, api_keys=KEYS).with_jobs().with_health().build()
    bodies = {"POST": {"duration": 0.1}, "PATCH": {"paused": False}}
    async with app.router.lifespan_context(app), client_of(app) as client:
        for method, path, right in CALLS:
            for key in (None, "wrong", *KEYS):
                headers = {"X-API-Key": key} if key else {}
                response = await client.request(method, path, headers=headers, json=bodies.get(method))
                expected = 401 if key not in KEYS else None if key in (*right.split(), "rules") else 403
                if expected is None:
                    assert response.status_code not in (401, 403), (method, path, key)
                else:
                    assert response.status_code == expected, (method, path, key)
        for path in ("/health", "/livez", "/readyz", "/"):
            assert (await client.get(path)).status_code == 200
        assert (await client.post("/v1/joblib/sweep")).status_code == 200
        for path in ("/docs", "/openapi.json", "/nothing"):
            assert (await client.get(path)).status_code == 401
        listed = (await client.get("/api/v1/jobs", headers={"Authorization": "Bearer reads"})).json()
        assert {job["submitted_by"] for job in listed} == {"sue", "anna"}
        document = (await client.get("/openapi.json", headers={"X-API-Key": "reads"})).json()
        assert set(document["components"]["securitySchemes"]) == {"ApiKey", "Bearer"}


def template(path: str) -> str:
    """The path with its parameters' names."""
    path = path.partition("?")[0]
    for value, parameter in IN_PATHS.items():
        path = path.replace(value, parameter)
    return path


def test_every_route_stands_in_the_list_of_calls(tmp_path: Path):
    paths = builder(tmp_path).with_jobs().build().openapi()["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    named = {("POST", "/v1/joblib/sweep")}  # open to all
    for method, path, _ in CALLS:
        named.add((method, template(path)))
    assert served == named


async def test_a_host_that_is_foreign_is_served_with_a_key_only(tmp_path: Path):
    for keys, status in (({}, 403), (KEYS, 200)):
        app = builder(tmp_path, api_keys=keys).with_health().build()
        async with client_of(app) as client:
            assert (
                await client.get("/docs", headers={"Host": "jobs.example", "X-API-Key": "reads"})
            ).status_code == status


async def test_allowed_origins_may_call_from_a_browser_and_no_others(tmp_path: Path):
    app = builder(tmp_path, cors_origins=["https://app.example"], api_keys=KEYS).with_health().build()
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key, idempotency-key"}
    async with client_of(app) as client:
        ours = await client.options("/api/v1/compute", headers={"Origin": "https://app.example", **asks})
        assert (ours.status_code, ours.headers["access-control-allow-origin"]) == (200, "https://app.example")
        assert "idempotency-key" in ours.headers["access-control-allow-headers"].lower()
        refused = await client.get("/api/v1/jobs", headers={"Origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example", "the page may read why"
        theirs = await client.options("/api/v1/compute", headers={"Origin": "https://evil.example", **asks})
        assert "access-control-allow-origin" not in theirs.headers
        assert theirs.headers["content-type"] == "application/problem+json"


async def test_a_body_over_the_limit_is_refused_by_every_route(tmp_path: Path):
    app = builder(tmp_path, max_body_bytes=2000).with_jobs().build()
    async with app.router.lifespan_context(app), client_of(app) as client:
        for method, path in (
            ("POST", "/api/v1/compute"),
            ("POST", "/api/v1/tasks/x"),
            ("PATCH", "/api/v1/queues/jobs"),
        ):
            response = await client.request(
                method, path, content=b" " * 2001, headers={"Content-Type": "application/json"}
            )
            assert (response.status_code, response.json()["type"]) == (413, "urn:servicekit:error:too-large")


async def test_a_server_is_told_in_plain_words_why_the_service_cannot_start(tmp_path: Path):
    (tmp_path / "file").write_text("")
    app = builder(tmp_path / "file" / "folder").with_jobs().build()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if sent:
            await asyncio.Event().wait()
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(SettingsError):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "--data-dir" in sent[0]["message"]
    assert "Traceback" not in sent[0]["message"]
