"""Clients of the stream of all jobs that do not read for a while, or are cut off and come back: nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from celery_jobs.api.stream.all_jobs import AllJobs
from celery_jobs.api.stream.batch import ROW_BYTES
from celery_jobs.api.stream.follower import Follower
from celery_jobs.api.stream.hub import Hub
from celery_jobs.records import submit
from celery_jobs.records.cancel import cancel, delete_job
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobFilter
from celery_jobs.records.submit import NewJob
from tests.support.waiting import wait_until_async
from tests.unit.following import SHORT_LOG_BYTES, AllRecords, all_jobs, hub, opened, records
from tests.unit.test_stream_feed import NEVER_POLL, SOON

__all__ = ["all_jobs", "hub", "records"]  # the fixtures

MANY_JOBS = 4_000


def submit_and_cancel(records: AllRecords, count: int, size: int = 500) -> list[JobId]:
    """Two changes a job, as fast as the database takes them."""
    ids: list[JobId] = []
    for _ in range(count // size):
        batch = [NewJob("compute", "jobs") for _ in range(size)]
        records.store.write(submit.insert_batch, batch)
        ids += [job.id for job in batch]

        def work(connection: Connection, these: list[NewJob] = batch) -> None:
            for job in these:
                cancel(connection, job.id)

        records.store.write(work)
        records.hint(set(ids[-1:]))
    return ids


class Slow:
    """A stream whose client takes nothing until it is told to."""

    def __init__(self, all_jobs: AllJobs, **chosen: Any) -> None:
        self.follower = Follower(all_jobs, JobFilter(**chosen), NEVER_POLL)
        self.read = asyncio.Event()
        self.largest = 0
        self.told = defaultdict[str, list[str]](list)
        self.task: asyncio.Task[None] | None = None

    async def start(self, last_event_id: str | None = None) -> Slow:
        await self.follower.begin(last_event_id)
        self.task = asyncio.create_task(self._follow())
        return self

    async def _follow(self) -> None:
        async for chunk in self.follower.frames():
            await self.read.wait()
            self.largest = max(self.largest, len(chunk))
            for line in chunk.decode().splitlines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    self.told[event["id"]].append(event["status"])

    async def until_told(self, count: int) -> None:
        async def enough() -> bool:
            return sum(map(len, self.told.values())) >= count

        await wait_until_async(enough, f"{count} events are told", 60)

    async def end(self) -> None:
        assert self.task is not None
        self.follower.close()
        await asyncio.wait_for(self.task, SOON)


class Held:
    """Pages after a first one wait to be let go one by one, and the first of who catches up for `catching_up`."""

    def __init__(self) -> None:
        self.catching_up, self.onward = asyncio.Event(), asyncio.Semaphore(0)

    async def __call__(self, after: tuple[int, int] | None, until: int | None) -> None:
        if until is not None:
            await (self.catching_up.wait() if after is None else self.onward.acquire())


async def test_a_client_that_does_not_read_loses_nothing_and_costs_no_memory(all_jobs: AllJobs, records: AllRecords):
    slow, filtered = await Slow(all_jobs).start(), await Slow(all_jobs, task="nobody runs it").start()
    quick = await opened(all_jobs, NEVER_POLL)
    ids = await asyncio.to_thread(submit_and_cancel, records, MANY_JOBS)
    await quick.got(ids[-1], "pending", "canceled")
    assert sum(batch.size for batch in all_jobs._log) <= SHORT_LOG_BYTES + (500 + ROW_BYTES) * all_jobs.page_rows * 2
    assert all_jobs.dropped(slow.follower.place)
    slow.read.set()
    filtered.read.set()
    await slow.until_told(2 * MANY_JOBS)
    everything = {str(job_id): ["pending", "canceled"] for job_id in ids}
    assert slow.told == everything
    assert quick.told == everything
    assert slow.largest < 70_000
    later = records.new_job()
    records.hint({later})
    await quick.got(later, "pending")
    await slow.until_told(2 * MANY_JOBS + 1)
    assert filtered.told == {}
    for each in (slow, filtered):
        await each.end()
    await quick.leave()


async def test_what_is_told_within_a_look_is_not_told_again_to_who_falls_behind(hub: Hub, records: AllRecords):
    all_jobs = AllJobs(records, hub, page_rows=2, most_bytes_held=1)  # the log holds the last page
    reading = asyncio.create_task(all_jobs.run())
    slow = await Slow(all_jobs).start()
    slow.read.set()
    pages, go_on = itertools.count(1), asyncio.Event()

    async def second_page_waits() -> None:
        if next(pages) == 2:
            await go_on.wait()

    records.before_look = second_page_waits
    batch = [NewJob("compute", "jobs") for _ in range(5)]
    records.store.write(submit.insert_batch, batch)
    first = batch[0].id
    records.hint({first})
    await slow.until_told(2)  # the first page, and the look is not over
    slow.read.clear()
    records.go(first, "pending", "running")
    go_on.set()
    records.hint({first})

    async def behind() -> bool:
        return all_jobs.dropped(slow.follower.place)

    await wait_until_async(behind, "the log has left the client behind", SOON)
    slow.read.set()
    await slow.until_told(6)
    assert slow.told == {job.id: ["pending"] for job in batch} | {first: ["pending", "running"]}
    await slow.end()
    reading.cancel()


async def test_a_job_that_was_ahead_of_every_page_is_told_from_its_beginning(hub: Hub, records: AllRecords):
    all_jobs = AllJobs(records, hub, page_rows=2)
    reading = asyncio.create_task(all_jobs.run())
    other = await opened(all_jobs, NEVER_POLL)  # keeps the reader, who knows the job's beginning
    mark = other.last_id
    job = records.new_job()
    records.hint({job})
    await other.got(job, "pending")
    held = records.before_page = Held()
    resumed = await Slow(all_jobs).start(mark)
    resumed.read.set()

    async def moves_on_before_the_second_page(many: int, change: Callable[[], object]) -> None:
        ahead = [records.new_job(), records.new_job()]
        change()
        records.hint({job})
        if held.catching_up.is_set():
            held.onward.release()  # the look before ends without the job
        await other.got(ahead[1], "pending")
        held.catching_up.set()
        await resumed.until_told(many)

    await moves_on_before_the_second_page(2, lambda: records.go(job, "pending", "running"))
    await moves_on_before_the_second_page(4, lambda: records.store.write(cancel, job))
    records.go(job, "canceling", "canceled")
    looks = all_jobs.begun
    held.onward.release()

    async def level_or_not() -> bool:
        return all_jobs.begun > looks or resumed.follower._mine is None

    await wait_until_async(level_or_not, "the client has seen that the look is over", SOON)
    records.before_page = None
    held.onward.release()
    records.hint({job})
    await resumed.until_told(8)
    assert resumed.told[job] == ["pending", "running", "canceling", "canceled"]
    await other.leave()
    await resumed.end()
    reading.cancel()


async def test_a_slow_client_is_told_of_deletions(all_jobs: AllJobs, records: AllRecords):
    slow = await Slow(all_jobs).start()
    doomed = records.new_job()
    records.hint({doomed})
    await asyncio.to_thread(submit_and_cancel, records, 1000)
    records.store.write(delete_job, doomed)
    records.hint({doomed})

    async def behind() -> bool:
        return all_jobs.dropped(slow.follower.place)

    await wait_until_async(behind, "the log has left the client behind", SOON)
    slow.read.set()
    await slow.until_told(2002)
    assert slow.told[doomed] == ["pending", "deleted"]
    await slow.end()
