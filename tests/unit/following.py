"""Clients of the stream of all jobs in this process, and the record table that its reader reads."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from celery_jobs.api.stream.all_jobs import AllJobs
from celery_jobs.api.stream.follower import open_all_jobs_stream
from celery_jobs.api.stream.hub import Hub
from celery_jobs.records import changes
from celery_jobs.records.changes import Look, Mark
from celery_jobs.records.ids import JobId
from celery_jobs.records.migrate import upgrade
from celery_jobs.records.record import JobFilter
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from tests.support.waiting import wait_until_async
from tests.unit.test_stream_feed import SOON, Records
from tests.unit.test_stream_response import Client

SHORT_LOG_BYTES = 40_000


class AllRecords(Records):
    """The record table as the reader of all jobs reads it; a page may be held, by what bounds it."""

    before_page: Callable[[tuple[int, int] | None, int | None], Awaitable[None]] | None = None

    async def everything_seen(self) -> Mark:
        return await self._read(changes.everything_seen)

    async def everything_since(self, mark: Mark, after: tuple[int, int] | None, until: int | None, most: int) -> Look:
        if self.before_look is not None:
            await self.before_look()
        if self.before_page is not None:
            await self.before_page(after, until)
        return await self._read(changes.everything_since, mark, after, until, most)


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[AllRecords]:
    settings = Settings(DATABASE_URL=f"sqlite:///{tmp_path / 'jobs.db'}")  # type: ignore[call-arg]
    upgrade(settings)
    store = Store(settings.database_url)
    records = AllRecords(store)
    yield records
    await records.close()
    store.close()


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
async def all_jobs(hub: Hub, records: AllRecords) -> AsyncIterator[AllJobs]:
    all_jobs = AllJobs(records, hub, most_bytes_held=SHORT_LOG_BYTES)
    reading = asyncio.create_task(all_jobs.run())
    yield all_jobs
    reading.cancel()
    assert all_jobs.open_streams() == 0, "every stream left"


class Reading:
    """What a client has got: the statuses told of each job, and the last id."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @property
    def text(self) -> str:
        return b"".join(self.client.chunks).decode()

    @property
    def told(self) -> dict[str, list[str]]:
        found = defaultdict[str, list[str]](list)
        for line in self.text.splitlines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                found[event["id"]].append(event["status"])
        return found

    @property
    def last_id(self) -> str:
        return [line.removeprefix("id: ") for line in self.text.splitlines() if line.startswith("id: ")][-1]

    async def got(self, job_id: JobId, *statuses: str) -> None:
        async def there() -> bool:
            return self.told[job_id] == list(statuses)

        try:
            await wait_until_async(there, f"{job_id} is told to be {statuses}", SOON)
        except AssertionError as error:
            error.add_note(self.text)
            raise

    async def leave(self) -> None:
        self.client.leave()
        await asyncio.wait_for(self.client.call, SOON)


async def opened(
    all_jobs: AllJobs, poll_interval: float = 0.05, last_event_id: str | None = None, **chosen: Any
) -> Reading:
    response = await open_all_jobs_stream(all_jobs, JobFilter(**chosen), poll_interval, last_event_id)
    client = Client(response)
    await client.got(1)
    return Reading(client)
