"""Counting for scrapes: one look for all who ask, kept in proportion to what it cost, and never waited for too long."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from celery_jobs.records import census, queues
from celery_jobs.records.migrate import upgrade
from celery_jobs.records.settings import Settings
from celery_jobs.records.states import JobStatus
from celery_jobs.records.store import AsyncStore, Store
from celery_jobs.records.submit import NewJob, insert_fresh
from celery_jobs.tasks.census import (
    KEPT_FOR_ITS_TIME,
    Census,
    _Kept,  # pyright: ignore[reportPrivateUsage]
)


class Counting:
    """A count that takes as long as a test says, and says how often it was made."""

    def __init__(self) -> None:
        self.made = 0
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.fails = False

    async def __call__(self) -> int:
        self.made += 1
        self.begun.set()
        await self.go_on.wait()
        if self.fails:
            raise ConnectionError
        return self.made


async def test_all_who_ask_at_the_same_time_share_one_look() -> None:
    count = Counting()
    kept = _Kept(count)
    asked = [asyncio.create_task(kept.get()) for _ in range(5)]
    await count.begun.wait()
    count.go_on.set()
    assert await asyncio.gather(*asked) == [1] * 5


async def test_a_look_is_kept_for_many_times_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("celery_jobs.tasks.census.time.monotonic", lambda: clock[0])
    count = Counting()
    kept = _Kept(count)
    looking = asyncio.create_task(kept.get())
    await count.begun.wait()
    clock[0] += 0.5
    count.go_on.set()
    assert await looking == 1
    clock[0] += 0.5 * KEPT_FOR_ITS_TIME - 0.1
    assert await kept.get() == 1
    clock[0] += 0.2
    assert await kept.get() == 2


async def test_who_leaves_does_not_stop_the_look_of_the_others() -> None:
    count = Counting()
    kept = _Kept(count)
    first, second = asyncio.create_task(kept.get()), asyncio.create_task(kept.get())
    await count.begun.wait()
    first.cancel()
    await asyncio.wait({first})
    count.go_on.set()
    assert (await second, kept.last) == (1, 1)


async def test_a_look_that_failed_is_not_kept() -> None:
    count = Counting()
    count.go_on.set()
    count.fails = True
    kept = _Kept(count)
    with pytest.raises(ConnectionError):
        await kept.get()
    count.fails = False
    assert await kept.get() == 2


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[AsyncStore]:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    upgrade(Settings.model_validate({"DATABASE_URL": url}))
    store = AsyncStore(Store(url))
    yield store
    await store.close()
    store.store.close()


async def test_numbers_come_from_the_database(store: AsyncStore) -> None:
    await store.write(queues.ensure, ["jobs"])
    await store.write(insert_fresh, [NewJob("t", "jobs"), NewJob("t", "jobs")])
    numbers = await Census(store).look()
    assert numbers is not None
    assert (numbers.workers, +numbers.jobs) == (0, {("jobs", JobStatus.pending): 2})


async def test_a_long_count_of_the_finished_holds_nobody_up(store: AsyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def long(_connection: Connection, _after: int | None = None) -> tuple[census.Counts, int | None]:
        assert go_on.wait(60)
        return Counter({("jobs", JobStatus.completed): 1}), None

    monkeypatch.setattr(census, "finished", long)
    counter = Census(store)
    before = await counter.look()
    go_on.set()
    after = await counter.look()
    assert before is not None
    assert after is not None
    assert (before.jobs.total(), after.jobs.total()) == (0, 1)


async def test_a_database_that_does_not_answer_gives_no_numbers(store: AsyncStore, tmp_path: Path) -> None:
    await store.write(queues.ensure, ["jobs"])
    counter = Census(store)
    assert await counter.look() is not None
    await store.write(lambda connection: connection.exec_driver_sql("DROP TABLE workers") and None)
    assert await counter.look() is None
