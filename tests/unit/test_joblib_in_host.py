"""The second API in an app that is not ours: what is hard to time with processes (contract, section 8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from celery_jobs.api.joblib import ProblemException, get_current_identity, get_db_session, problem_exception_handler
from celery_jobs.api.joblib import router as joblib_router
from celery_jobs.records import create_tables

JOB = "/v1/joblib/rooms/room/tasks/room:modifiers:Rotate"


class Leaving(AsyncSession):
    """A session whose database is out of reach after some transactions."""

    left: int | None = None

    async def connection(self, *args: Any, **kwargs: Any) -> Any:
        if Leaving.left is not None:
            Leaving.left -= 1
            if Leaving.left < 0:
                raise OperationalError("SELECT 1", {}, Exception("database is locked"))
        return await super().connection(*args, **kwargs)


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[FastAPI]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'host.db'}")
    await create_tables(engine)

    async def session() -> AsyncGenerator[AsyncSession]:
        async with Leaving(engine) as found:
            yield found

    app = FastAPI()
    app.include_router(joblib_router)
    app.add_exception_handler(ProblemException, problem_exception_handler)
    app.dependency_overrides = {get_db_session: session, get_current_identity: lambda: "somebody"}
    monkeypatch.setattr(Leaving, "left", None)
    yield app
    await engine.dispose()


@pytest.fixture
async def client(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=30) as http:
        registered = {"category": "modifiers", "name": "Rotate"}
        assert (await http.put("/v1/joblib/rooms/room/jobs", json=registered)).status_code == 201
        yield http


async def waiting(app: FastAPI, number: int = 1) -> None:
    async with asyncio.timeout(10):
        while len(app.state.joblib.ends) != number:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_a_wait_on_a_task_ends_only_at_its_end(app: FastAPI, client: httpx.AsyncClient) -> None:
    prefer = {"Prefer": "wait=20"}
    submit = asyncio.create_task(client.post(JOB, json={"payload": {}}, headers=prefer))
    await waiting(app)
    task = (await client.post("/v1/joblib/tasks/claim")).json()["task"]
    address = f"/v1/joblib/tasks/{task['id']}"
    look = asyncio.create_task(client.get(address, headers=prefer))
    await waiting(app, 2)
    for status in ("running", "completed"):
        assert not submit.done()
        assert not look.done()
        assert (await client.patch(address, json={"status": status})).status_code == 200
    for answer in (await submit, await look):
        assert (answer.status_code, answer.json()["status"]) == (200, "completed")
        assert answer.headers["preference-applied"] == "wait"


async def test_a_wait_goes_on_when_its_task_goes_back_and_ends_in_time(app: FastAPI, client: httpx.AsyncClient) -> None:
    task = (await client.post(JOB, json={"payload": {}})).json()
    address = f"/v1/joblib/tasks/{task['id']}"
    long, short = (asyncio.create_task(client.get(address, headers={"Prefer": f"wait={n}"})) for n in (20, 1))
    await waiting(app, 2)
    await client.post("/v1/joblib/tasks/claim")
    assert (await client.delete("/v1/joblib/workers/somebody")).status_code == 204
    assert (await short).json()["status"] == "pending"
    assert not long.done()
    app.state.joblib.close()  # as at SIGTERM
    assert (await long).json()["status"] == "pending"


# a submit writes the task and reads it; the schema is known from one before
async def test_a_recorded_submit_is_a_202_whatever_becomes_of_the_database(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = (await client.post(JOB, json={"payload": {"angle": 1}})).json()
    monkeypatch.setattr(Leaving, "left", 1)
    answer = await client.post(JOB, json={"payload": {"angle": 1}}, headers={"Prefer": "wait=5"})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"].endswith(answer.json()["id"])
    monkeypatch.setattr(Leaving, "left", None)
    task = (await client.get(answer.headers["location"])).json()
    same = {"created_at": None, "queue_position": None}
    assert task | same == answer.json() | same
    assert seen.keys() == answer.json().keys()
    assert task["created_by_id"] == "somebody"


async def test_a_submit_that_was_not_recorded_is_a_503(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for transactions in (0, 1):
        monkeypatch.setattr(Leaving, "left", transactions)
        answer = await client.post(JOB, json={"payload": {}})
        assert (answer.status_code, answer.json()["title"]) == (503, "Service Unavailable"), answer.text
    monkeypatch.setattr(Leaving, "left", None)
    assert (await client.get("/v1/joblib/rooms/room/tasks")).json()["total"] == 0
