"""Reads that many streams share."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest

from celery_jobs.api.stream.shared import SharedRows
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.ids import JobId, new_job_id
from celery_jobs.records.record import StreamRow
from tests.support.waiting import wait_until_async


class Source:
    """Answers when told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[set[JobId]] = []
        self.answer = asyncio.Event()
        self.fails = False

    async def rows(self, ids: Collection[JobId]) -> Mapping[JobId, StreamRow]:
        self.asked.append(set(ids))
        await self.answer.wait()
        if self.fails:
            raise DatabaseUnavailable
        return {}


async def begun(source: Source, reads: int) -> None:
    async def enough() -> bool:
        return len(source.asked) >= reads

    await wait_until_async(enough, f"{reads} reads have begun", interval=0)


async def test_those_who_ask_at_the_same_time_share_a_read() -> None:
    source = Source()
    shared, ids = SharedRows(source), [new_job_id() for _ in range(1000)]
    asking = [asyncio.create_task(shared.rows([job_id])) for job_id in ids]
    await begun(source, 1)
    source.answer.set()
    assert await asyncio.gather(*asking) == [{}] * 1000
    assert source.asked == [set(ids)]


async def test_a_read_that_has_begun_is_too_old_for_who_asks_now() -> None:
    source = Source()
    shared, (first, *others) = SharedRows(source), [new_job_id() for _ in range(4)]
    asking = [asyncio.create_task(shared.rows([first]))]
    await begun(source, 1)
    asking += [asyncio.create_task(shared.rows([job_id])) for job_id in (first, *others)]
    await begun(source, 2)  # though the first read has no answer yet
    source.answer.set()
    await asyncio.gather(*asking)
    assert source.asked == [{first}, {first, *others}]


async def test_one_who_leaves_does_not_end_the_read_of_the_others() -> None:
    source = Source()
    shared = SharedRows(source)
    leaving, staying = (asyncio.create_task(shared.rows([new_job_id()])) for _ in range(2))
    await begun(source, 1)
    leaving.cancel()
    await asyncio.wait({leaving})
    source.answer.set()
    assert await staying == {}


async def test_an_outage_reaches_all_who_asked_and_nobody_later() -> None:
    source = Source()
    source.fails = True
    shared = SharedRows(source)
    asking = [asyncio.create_task(shared.rows([new_job_id()])) for _ in range(3)]
    source.answer.set()
    for each in asking:
        with pytest.raises(DatabaseUnavailable):
            await each
    source.fails = False
    assert await shared.rows([new_job_id()]) == {}
