"""What the contract says of every scheduler, on ours and on the one of examples/custom_scheduler."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio
from fastapi import FastAPI
from ulid import ULID

from celery_jobs.api import BaseServiceBuilder, JobStatus, Scheduler
from celery_jobs.records.settings import Settings
from tests.support.plugged import INFO, Listener, example, problem_of
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.asyncio(loop_scope="module")
UNKNOWN = ULID.from_str("01JQRS7X6ZJ8T3V5W7Y9A1B3C5")
SOON = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["ours", "the example's"])
async def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FastAPI]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("service"), shutdown_timeout_seconds=5)
    builders = {"ours": BaseServiceBuilder, "the example's": example("custom_scheduler").MemoryServiceBuilder}
    built = builders[request.param](info=INFO, settings=settings).with_jobs().with_health().build()
    async with built.router.lifespan_context(built):
        yield built


@pytest_asyncio.fixture(loop_scope="module")
async def scheduler(app: FastAPI) -> AsyncIterator[Scheduler]:
    yield app.state.scheduler
    await app.state.scheduler.set_max_concurrency(None)


@pytest_asyncio.fixture(loop_scope="module")
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000", timeout=30) as client:
        yield client


class Gate:
    """A plain function that runs until it is opened."""

    def __init__(self) -> None:
        self.began, self.open = threading.Event(), threading.Event()

    def pass_through(self) -> str:
        self.began.set()
        assert self.open.wait(30)
        return "through"


async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


def fail() -> None:
    raise ValueError("no\nway")


async def reaches(scheduler: Scheduler, job_id: ULID, status: str) -> None:
    async def there() -> bool:
        return await scheduler.get_status(job_id) == status

    await wait_until_async(there, f"{job_id} is {status}", SOON)


# --- from Python


async def test_a_coroutine_and_a_plain_function_give_their_results(scheduler: Scheduler):
    for target, arguments, result in [(nap, (0.05,), "rested"), (sorted, ([2, 1],), [1, 2]), (str.upper, ("a",), "A")]:
        job_id = await scheduler.add_job(target, *arguments)
        await scheduler.wait(job_id, SOON)
        assert await scheduler.get_result(job_id) == result
        record = await scheduler.get_record(job_id)
        assert (record.id, record.status, record.attempt) == (job_id, JobStatus.completed, 1)
        assert record.started_at is not None
        assert record.finished_at is not None
        assert record.submitted_at <= record.started_at <= record.finished_at
        assert job_id == (await scheduler.get_all_records())[0].id, "newest first"


async def test_a_job_that_raises_is_failed_and_says_why(scheduler: Scheduler):
    job_id = await scheduler.add_job(fail)
    await scheduler.wait(job_id, SOON)
    record = await scheduler.get_record(job_id)
    assert record.status is JobStatus.failed
    assert (record.error or "").startswith("ValueError: no")
    assert "Traceback" in (record.error_traceback or "")
    with pytest.raises(RuntimeError):
        await scheduler.get_result(job_id)


async def test_a_coroutine_is_interrupted(scheduler: Scheduler):
    job_id = await scheduler.add_job(nap, 60)
    await reaches(scheduler, job_id, "running")
    with pytest.raises(RuntimeError):
        await scheduler.get_result(job_id)
    with pytest.raises(TimeoutError):
        await scheduler.wait(job_id, 0.05)
    assert await scheduler.cancel(job_id)
    await scheduler.wait(job_id, SOON)
    assert await scheduler.get_status(job_id) is JobStatus.canceled
    assert not await scheduler.cancel(job_id)
    with pytest.raises(RuntimeError):
        await scheduler.get_result(job_id)


async def test_a_plain_function_is_canceling_until_it_returns_and_keeps_its_slot(scheduler: Scheduler):
    await scheduler.set_max_concurrency(1)
    gate = Gate()
    held = await scheduler.add_job(gate.pass_through)
    await reaches(scheduler, held, "running")
    waiting, never = await scheduler.add_job(nap, 0.01), await scheduler.add_job(fail)
    assert await scheduler.cancel(never)
    assert await scheduler.get_status(never) is JobStatus.canceled, "it was waiting: at once"
    assert await scheduler.cancel(held)
    assert await scheduler.get_status(held) is JobStatus.canceling
    with pytest.raises(TimeoutError):
        await scheduler.wait(waiting, 0.3)
    gate.open.set()
    await scheduler.wait(held, SOON)
    record = await scheduler.get_record(held)
    assert (record.status, record.finished_at is None) == (JobStatus.canceled, False)
    await scheduler.wait(waiting, SOON)
    assert (await scheduler.get_record(never)).started_at is None


async def test_a_deleted_job_keeps_its_slot_while_its_code_runs_and_a_larger_limit_admits(scheduler: Scheduler):
    await scheduler.set_max_concurrency(1)
    gate = Gate()
    held = await scheduler.add_job(gate.pass_through)
    await reaches(scheduler, held, "running")
    assert await asyncio.to_thread(gate.began.wait, SOON)
    await scheduler.delete(held)
    with pytest.raises(KeyError):
        await scheduler.get_record(held)
    waiting = await scheduler.add_job(nap, 0.01)
    with pytest.raises(TimeoutError):
        await scheduler.wait(waiting, 0.3)
    await scheduler.set_max_concurrency(2)
    await scheduler.wait(waiting, SOON)
    gate.open.set()


async def test_what_is_wrong_is_an_error(scheduler: Scheduler):
    for method in ("get_status", "get_record", "cancel", "delete", "wait", "get_result"):
        with pytest.raises(KeyError):
            await getattr(scheduler, method)(UNKNOWN)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="max_concurrency"):
            await scheduler.set_max_concurrency(wrong)
    with pytest.raises(TypeError):
        await scheduler.add_job(5)


# --- over HTTP


async def test_the_walk_from_submit_to_delete(client: httpx.AsyncClient, app: FastAPI):
    submitted = await client.post("/api/v1/compute", json={"duration": 0.3})
    job_id = submitted.json()["job_id"]
    poll_url = f"/api/v1/jobs/{job_id}"
    assert (submitted.status_code, submitted.headers["location"]) == (202, poll_url)
    assert int(submitted.headers["retry-after"]) >= 1
    assert await Listener(app, f"{poll_url}/$stream", "0-0-0").ended() == ["running", "completed"]
    over = Listener(app, f"{poll_url}/$stream", "1-4-0")
    await over.ended()
    assert over.status == 204
    record = (await client.get(poll_url)).json()
    times = {name: record[name] for name in ("submitted_at", "started_at", "finished_at")}
    result = {"job_id": job_id, "status": "completed", "result": 42, "error": None, **times}
    for path in (f"{poll_url}/$result", f"/api/v1/compute/{job_id}/result"):
        assert (await client.get(path)).json() == result
    listed = await client.get("/api/v1/jobs?status_filter=completed")
    assert job_id in [each["id"] for each in listed.json()]
    jsonschema.validate(listed.json(), (await client.get("/api/v1/jobs/$schema")).json())
    assert problem_of(await client.post(f"{poll_url}/$cancel"), 409) == "conflict"
    assert (await client.delete(poll_url)).status_code == 204
    assert problem_of(await client.get(poll_url), 404) == "not-found"


async def test_a_stream_ends_with_a_cancel_or_a_deletion(client: httpx.AsyncClient, app: FastAPI):
    for way, last in (("cancel", "canceled"), ("delete", "deleted")):
        job_id = (await client.post("/api/v1/compute", json={"duration": 60})).json()["job_id"]
        stream = Listener(app, f"/api/v1/jobs/{job_id}/$stream?poll_interval=0.05", "0-0-0")
        await stream.told("running")
        if way == "cancel":
            response = await client.post(f"/api/v1/jobs/{job_id}/$cancel")
            assert (response.status_code, response.json()["id"]) == (202, job_id)
        else:
            await client.delete(f"/api/v1/jobs/{job_id}")
        assert (await stream.ended())[-1] == last


async def test_a_submit_waits_for_the_end_where_it_is_asked_to(client: httpx.AsyncClient):
    wait = {"Prefer": "respond-async, wait=10"}
    ended = await client.post("/api/v1/tasks/compute", json={"duration": 0.1}, headers=wait)
    assert (ended.status_code, ended.json()["result"]) == (200, 42)
    assert ended.headers["preference-applied"] == "wait"
    wait = {"Prefer": "respond-async, wait=0"}
    accepted = await client.post("/api/v1/tasks/compute", json={"duration": 60}, headers=wait)
    assert (accepted.status_code, accepted.headers["preference-applied"]) == (202, "respond-async, wait")
    await client.delete(accepted.headers["location"])


async def test_pages_hold_every_job_once(client: httpx.AsyncClient):
    for _ in range(5):
        await client.post("/api/v1/compute", json={"duration": 0.1})
    whole = [each["id"] for each in (await client.get("/api/v1/jobs")).json()]
    paged: list[str] = []
    path: Any = "/api/v1/jobs?limit=2"
    while path:
        page = await client.get(path)
        paged += [each["id"] for each in page.json()]
        path = page.links.get("next", {}).get("url")
    assert paged == whole
    assert len(paged) == len(set(paged)) >= 5


async def test_the_stream_of_all_jobs_tells_a_job_from_its_beginning_to_its_end(
    client: httpx.AsyncClient, app: FastAPI
):
    stream = await Listener(app, "/api/v1/jobs/$stream?poll_interval=0.05&tag=none").opened()
    every = await Listener(app, "/api/v1/jobs/$stream?poll_interval=0.05").opened()
    job_id = (await client.post("/api/v1/compute", json={"duration": 0.2})).json()["job_id"]

    async def told() -> bool:
        return [each["status"] for each in every.events if each["id"] == job_id] == ["pending", "running", "completed"]

    await wait_until_async(told, "all of it is told", SOON)
    await client.delete(f"/api/v1/jobs/{job_id}")

    async def deleted() -> bool:
        return every.events[-1] == {"id": job_id, "status": "deleted"}

    await wait_until_async(deleted, "the deletion is told", SOON)
    assert stream.events == []
    await asyncio.gather(stream.leave(), every.leave())


# --- the end


@pytest.mark.parametrize("builder", ["ours", "the example's"])
async def test_a_shutdown_drains_and_then_cancels(builder: str, tmp_path_factory: pytest.TempPathFactory):
    settings = Settings(data_dir=tmp_path_factory.mktemp("service"))
    builders = {"ours": BaseServiceBuilder, "the example's": example("custom_scheduler").MemoryServiceBuilder}
    app = builders[builder](info=INFO, settings=settings).with_jobs(shutdown_timeout=1).build()
    told: list[str] = []

    async def ends_in_time() -> None:
        await asyncio.sleep(0.3)
        told.append("ended")

    async def takes_too_long() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append("interrupted")
            raise

    async with app.router.lifespan_context(app):
        scheduler: Scheduler = app.state.scheduler
        for target in (ends_in_time, takes_too_long):
            await reaches(scheduler, await scheduler.add_job(target), "running")
        began = time.monotonic()
    assert told == ["ended", "interrupted"]
    assert time.monotonic() - began < 4
    with pytest.raises(RuntimeError):
        await scheduler.add_job(nap, 0)
