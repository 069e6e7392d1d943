"""A submit whose task is recorded is answered with it, even if the database goes away before it is read."""

from __future__ import annotations

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
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[httpx.AsyncClient]:
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
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        registered = {"category": "modifiers", "name": "Rotate"}
        assert (await http.put("/v1/joblib/rooms/room/jobs", json=registered)).status_code == 201
        yield http
    await engine.dispose()


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
