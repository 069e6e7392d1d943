"""Schedulers that are not ours, and services on them, in this process."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import httpx
from fastapi import FastAPI
from pydantic import Field
from ulid import ULID

from celery_jobs.api import BaseServiceBuilder, JobOptions, JobRecord, JobStatus, Scheduler, ServiceInfo
from tests.support.waiting import wait_until_async

EXAMPLES = Path(__file__).parents[2] / "examples"
INFO = ServiceInfo(id="test", display_name="Test")


def example(name: str) -> ModuleType:
    """The module of an example, as its user imports it."""
    module_name = f"example_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, EXAMPLES / name / "main.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module_name])
    return sys.modules[module_name]


class Film(JobRecord):
    """A record with fields of its own."""

    reel: str = "first"
    frames: dict[str, int] = Field(default={})


class ByHand(Scheduler):
    """Its jobs do what the test says; `told` is what was asked of it, and `fails` what it raises instead."""

    def __init__(self) -> None:
        self.records: dict[ULID, JobRecord] = {}
        self.results: dict[ULID, Any] = {}
        self.told: list[Any] = []
        self.fails: dict[str, Exception] = {}
        self.hangs: set[str] = set()

    def put(self, status: str = "pending", record_class: type[JobRecord] = JobRecord, **fields: Any) -> ULID:
        """A job that is there, whoever brought it."""
        fields = {"id": ULID(), "submitted_at": datetime.now(UTC), **fields}
        record = record_class(status=JobStatus(status), **fields)
        self.records[record.id] = record
        return record.id

    def change(self, job_id: ULID, status: str | None = None, **fields: Any) -> None:
        """The record is a live one: it changes where it stands."""
        record = self.records[job_id]
        for name, value in ({} if status is None else {"status": JobStatus(status)} | moments(status)).items():
            if getattr(record, name) is None or name == "status":
                setattr(record, name, value)
        for name, value in fields.items():
            setattr(record, name, value)

    async def _asked(self, method: str, *what: Any) -> None:
        self.told.append((method, *what))
        if method in self.hangs:
            await asyncio.Event().wait()
        if method in self.fails:
            raise self.fails[method]

    async def start(self) -> None:
        await self._asked("start")

    async def add_job(self, target: Any, /, *args: Any, **kwargs: Any) -> ULID:
        await self._asked("add_job", target, args, kwargs)
        return self.put(task=target.__name__)

    async def get_status(self, job_id: ULID) -> JobStatus:
        await self._asked("get_status")
        return self.records[job_id].status

    async def get_record(self, job_id: ULID) -> JobRecord:
        await self._asked("get_record")
        return self.records[job_id]

    async def get_all_records(self) -> list[JobRecord]:
        await self._asked("get_all_records")
        return list(self.records.values())

    async def cancel(self, job_id: ULID) -> bool:
        await self._asked("cancel", job_id)
        if self.records[job_id].status in ("completed", "failed", "canceled"):
            return False
        self.change(job_id, "canceled" if self.records[job_id].status is JobStatus.pending else "canceling")
        return True

    async def delete(self, job_id: ULID) -> None:
        await self._asked("delete", job_id)
        del self.records[job_id]

    async def wait(self, job_id: ULID, timeout: float | None = None) -> None:
        await self._asked("wait", job_id, timeout)

    async def get_result(self, job_id: ULID) -> Any:
        await self._asked("get_result", job_id)
        if job_id not in self.results:
            raise RuntimeError("no result")
        return self.results[job_id]

    async def set_max_concurrency(self, max_concurrency: int | None) -> None:
        await self._asked("set_max_concurrency", max_concurrency)

    async def shutdown(self, timeout: float | None = None) -> None:
        await self._asked("shutdown", timeout)


def moments(status: str) -> dict[str, datetime]:
    """The times that a status brings."""
    now = datetime.now(UTC)
    if status == "canceled":
        return {"finished_at": now}
    if status in ("completed", "failed"):
        return {"started_at": now, "finished_at": now}
    return {"started_at": now} if status in ("running", "canceling") else {}


def plugged(scheduler: Any, **settings: Any) -> BaseServiceBuilder:
    """Builds a service on this scheduler."""
    from celery_jobs.records.settings import Settings

    class Builder(BaseServiceBuilder):
        def _create_scheduler(self, job_options: JobOptions) -> Scheduler:
            return scheduler

    return Builder(info=INFO, settings=Settings(**settings))


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    """The app as it lives, and a client of it, to whom an unforeseen error is an answer."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost:8000", timeout=30) as client,
    ):
        yield client


class Listener:
    """A client of a stream of the app, whose events can be looked at while it is open."""

    def __init__(self, app: FastAPI, url: str, last_event_id: str | None = None) -> None:
        headers = [(b"host", b"localhost:8000")]
        if last_event_id is not None:
            headers.append((b"last-event-id", last_event_id.encode()))
        parts = urlsplit(url)
        scope = {"type": "http", "method": "GET", "path": parts.path, "raw_path": parts.path.encode()}
        scope |= {"query_string": parts.query.encode(), "headers": headers, "app": app, "http_version": "1.1"}
        scope |= {"scheme": "http", "server": ("localhost", 8000), "root_path": ""}
        self.status = 0
        self.text = ""
        self._left = asyncio.Event()
        self._asked = False
        self.call = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.text.splitlines() if line.startswith("data: ")]

    @property
    def statuses(self) -> list[str]:
        return [event["status"] for event in self.events]

    @property
    def ids(self) -> list[str]:
        return [line[4:] for line in self.text.splitlines() if line.startswith("id: ")]

    async def opened(self) -> Listener:
        """Once the headers and the first bytes are here."""
        await self._until(lambda: self.status and self.text, "the stream opens")
        return self

    async def told(self, *statuses: str) -> None:
        """Once just these statuses were told."""
        await self._until(lambda: self.statuses == list(statuses), f"{statuses} are told")

    async def _until(self, fact: Any, what: str) -> None:
        async def there() -> bool:
            return bool(fact())

        try:
            await wait_until_async(there, what, 5)
        except AssertionError as error:
            error.add_note(f"{self.status}: {self.text}")
            raise

    async def ended(self) -> list[str]:
        """The statuses, once the server has ended the stream."""
        await asyncio.wait_for(self.call, 5)
        return self.statuses

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.call, 5)


def problem_of(response: httpx.Response, status: int) -> str:
    """The kind of problem; the answer is one and has this status."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body: Mapping[str, Any] = response.json()
    assert (response.status_code, body["status"]) == (status, status), response.text
    return body["type"].rpartition(":")[2].rpartition("/")[2]
