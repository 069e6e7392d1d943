"""The one reader and the fan-out, on a real SQLite database: nothing lost between looks, and one reader for all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete

from celery_jobs.api.stream import feed as feed_module
from celery_jobs.api.stream.feed import Feed
from celery_jobs.api.stream.hub import Hub, News, Subscription
from celery_jobs.records import changes, reads, submit
from celery_jobs.records.cancel import delete_job
from celery_jobs.records.errors import DatabaseUnavailable, ShuttingDown
from celery_jobs.records.ids import JobId
from celery_jobs.records.migrate import upgrade
from celery_jobs.records.moves import move
from celery_jobs.records.record import StreamRow
from celery_jobs.records.settings import Settings
from celery_jobs.records.states import JobStatus
from celery_jobs.records.store import AsyncStore, Store
from celery_jobs.records.submit import NewJob
from celery_jobs.records.tables import jobs
from tests.support.waiting import wait_until_async

SOON = 5.0
NEVER_POLL = 60.0


class Records:
    """The record table as the feed reads it; reads are counted, and may be held or made to fail."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reads = 0
        self.failing = False
        self.before_look: Callable[[], Awaitable[None]] | None = None
        self.hint: Callable[[set[JobId]], None] = lambda ids: None
        self._async = AsyncStore(store)

    async def rows(self, ids: Collection[JobId]) -> dict[JobId, StreamRow]:
        return await self._read(reads.stream_rows, ids)

    async def changed_since(self, mark: int | None, ids: Collection[JobId]) -> tuple[Collection[StreamRow], int]:
        if mark is None:
            return [], await self._read(changes.mark_now)
        if self.before_look is not None:
            await self.before_look()
        return await self._read(changes.changed_since, mark, ids)

    def on_hint(self, callback: Callable[[set[JobId]], None]) -> None:
        self.hint = callback

    async def _read(self, work: Callable[..., Any], *args: Any) -> Any:
        self.reads += 1
        if self.failing:
            raise DatabaseUnavailable("pulled the plug")
        return await self._async.read(work, *args)

    def new_job(self) -> JobId:
        job = NewJob(task="compute", queue="jobs")
        self.store.write(submit.insert_batch, [job])
        return job.id

    def go(self, job_id: JobId, source: str, target: str) -> None:
        statement = move({JobStatus(source): JobStatus(target)}, jobs.c.id == job_id)

        def work(connection: Connection) -> int:
            return connection.execute(statement).rowcount

        assert self.store.write(work) == 1

    def purge(self, job_id: JobId) -> None:
        def work(connection: Connection) -> None:
            connection.execute(delete(jobs).where(jobs.c.id == job_id))

        self.store.write(work)

    async def close(self) -> None:
        await self._async.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("feed") / "jobs.db"
    settings = Settings(data_dir=path.parent)
    upgrade(settings)
    store = Store(settings.database_url)
    yield store
    store.close()


@pytest.fixture
async def records(store: Store) -> AsyncIterator[Records]:
    records = Records(store)
    yield records
    await records.close()


@pytest.fixture
async def hub(records: Records) -> AsyncIterator[Hub]:
    hub = Hub()
    running = asyncio.create_task(Feed(records, hub).run())
    yield hub
    assert not running.done(), "the feed never ends by itself"
    running.cancel()


@pytest.fixture
def no_rereading(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found must be found by hints and marks."""
    monkeypatch.setattr(feed_module, "REREAD_SECONDS", 3600.0)


async def opened(hub: Hub, records: Records, job_id: JobId, poll_interval: float) -> Subscription:
    """Subscribe and read, in the order of a stream that opens."""
    subscription = hub.subscribe(job_id, poll_interval)
    subscription.seen((await records.rows([job_id]))[job_id])
    return subscription


async def settled(records: Records, hub: Hub) -> None:
    """Until the feed has made its first look and rests."""
    before = -1
    while before != records.reads:
        before = records.reads
        await asyncio.sleep(0.05)


async def news(subscription: Subscription, timeout: float = SOON) -> StreamRow:
    row = await subscription.next(timeout)
    assert isinstance(row, StreamRow), row
    return row


@pytest.mark.usefixtures("no_rereading")
async def test_a_hint_from_any_thread_brings_the_change_at_once(hub: Hub, records: Records):
    job_id = records.new_job()
    subscription = await opened(hub, records, job_id, NEVER_POLL)
    await settled(records, hub)
    records.go(job_id, "pending", "running")
    thread = threading.Thread(target=records.hint, args=({job_id},))
    thread.start()
    assert (await news(subscription)).status is JobStatus.running
    thread.join()


@pytest.mark.usefixtures("no_rereading")
async def test_without_a_hint_the_poll_interval_brings_it(hub: Hub, records: Records):
    job_id = records.new_job()
    subscription = await opened(hub, records, job_id, 0.05)
    records.go(job_id, "pending", "running")
    assert (await news(subscription)).status is JobStatus.running


@pytest.mark.usefixtures("no_rereading")
async def test_the_smallest_interval_of_all_watchers_counts(hub: Hub, records: Records):
    slow, quick = records.new_job(), records.new_job()
    patient = await opened(hub, records, slow, NEVER_POLL)
    await settled(records, hub)
    await opened(hub, records, quick, 0.05)
    records.go(slow, "pending", "running")
    assert (await news(patient)).status is JobStatus.running


@pytest.mark.usefixtures("no_rereading")
async def test_a_stream_that_opens_while_the_feed_looks_loses_no_change(hub: Hub, records: Records):
    watched, late = records.new_job(), records.new_job()
    await opened(hub, records, watched, 0.05)
    arrived: asyncio.Future[Subscription] = asyncio.get_running_loop().create_future()

    async def open_and_change() -> None:
        """The look that is under way does not ask for the late job, and its new mark will lie behind this change."""
        records.before_look = None
        subscription = await opened(hub, records, late, 0.05)
        records.go(late, "pending", "running")
        arrived.set_result(subscription)

    records.before_look = open_and_change
    subscription = await asyncio.wait_for(arrived, SOON)
    assert (await news(subscription)).status is JobStatus.running


async def test_an_outage_only_delays(hub: Hub, records: Records):
    job_id = records.new_job()
    subscription = await opened(hub, records, job_id, 0.02)
    records.failing = True
    healthy = records.reads

    async def failed_twice() -> bool:
        return records.reads >= healthy + 2

    await wait_until_async(failed_twice, "the feed meets the outage")
    records.go(job_id, "pending", "running")
    records.hint({job_id})
    assert await subscription.next(0.2) is News.quiet
    records.failing = False
    assert (await news(subscription)).status is JobStatus.running


@pytest.mark.usefixtures("no_rereading")
async def test_a_deleted_job_says_so_and_a_purged_one_is_gone(hub: Hub, records: Records):
    deleted, purged = records.new_job(), records.new_job()
    first = await opened(hub, records, deleted, 0.05)
    second = await opened(hub, records, purged, 0.05)
    records.store.write(delete_job, deleted)
    assert (await news(first)).deleted
    records.purge(purged)
    records.hint({purged})
    assert await second.next(SOON) is News.gone
    assert await second.next(SOON) is News.gone


async def test_many_streams_are_read_as_one(hub: Hub, records: Records):
    async def reads_a_look(streams: int) -> float:
        subscriptions = [await opened(hub, records, job_id, 0.05) for _ in range(streams)]
        await asyncio.sleep(0.2)
        before, began = records.reads, asyncio.get_running_loop().time()
        await asyncio.sleep(1.0)
        rate = (records.reads - before) / (asyncio.get_running_loop().time() - began)
        for subscription in subscriptions:
            subscription.close()
        return rate

    job_id = records.new_job()
    alone, together = await reads_a_look(1), await reads_a_look(500)
    assert together <= alone * 1.5 + 2


async def test_nobody_watching_costs_no_read(hub: Hub, records: Records):
    subscription = await opened(hub, records, records.new_job(), 0.02)
    subscription.close()
    assert hub.open_streams() == 0
    await asyncio.sleep(0.1)
    before = records.reads
    await asyncio.sleep(0.3)
    assert records.reads == before


async def test_a_slow_reader_finds_the_newest_row_and_never_an_older_one(hub: Hub, records: Records):
    job_id = records.new_job()
    subscription = await opened(hub, records, job_id, NEVER_POLL)
    seen: list[StreamRow] = []
    for source, target in (("pending", "running"), ("running", "canceling"), ("canceling", "canceled")):
        records.go(job_id, source, target)
        seen.append((await records.rows([job_id]))[job_id])
    for row in (seen[1], seen[2], seen[0]):
        hub.publish(row)
    assert (await news(subscription)).status is JobStatus.canceled
    hub.publish(seen[1])
    assert await subscription.next(0.1) is News.quiet


async def test_closing_ends_every_stream_and_refuses_new_ones(hub: Hub, records: Records):
    job_id = records.new_job()
    subscriptions = [await opened(hub, records, job_id, 1.0) for _ in range(3)]
    hub.close()
    for subscription in subscriptions:
        assert await subscription.next(SOON) is News.closed
        subscription.close()
    assert hub.open_streams() == 0
    with pytest.raises(ShuttingDown):
        hub.subscribe(job_id, 1.0)


async def test_everything_is_read_again_although_the_interval_is_long_and_hints_get_lost(
    hub: Hub, records: Records, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(feed_module, "REREAD_SECONDS", 0.2)
    job_id = records.new_job()
    subscription = await opened(hub, records, job_id, NEVER_POLL)
    await settled(records, hub)
    records.go(job_id, "pending", "running")
    assert (await news(subscription)).status is JobStatus.running
