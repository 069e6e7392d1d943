"""The one reader of all jobs and its streams, on a real SQLite database: what they cost and how they begin and end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from celery_jobs.api.stream import all_jobs as all_jobs_module
from celery_jobs.api.stream import follower as follower_module
from celery_jobs.api.stream.all_jobs import AllJobs
from celery_jobs.api.stream.follower import open_all_jobs_stream
from celery_jobs.api.stream.hub import Hub
from celery_jobs.records.cancel import delete_job
from celery_jobs.records.changes import Mark
from celery_jobs.records.errors import DatabaseUnavailable, ShuttingDown
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobFilter
from tests.unit.following import AllRecords, all_jobs, hub, opened, records
from tests.unit.test_stream_feed import NEVER_POLL, SOON

__all__ = ["all_jobs", "hub", "records"]  # the fixtures


async def test_a_hint_of_any_job_from_any_thread_brings_its_changes_at_once(all_jobs: AllJobs, records: AllRecords):
    reading = await opened(all_jobs, NEVER_POLL)
    job_id = records.new_job()
    thread = threading.Thread(target=records.hint, args=({job_id},))
    thread.start()
    await reading.got(job_id, "pending")
    records.go(job_id, "pending", "running")
    records.hint({JobId("some other job")})
    await reading.got(job_id, "pending", "running")
    thread.join()
    await reading.leave()


async def test_without_a_hint_the_smallest_poll_interval_brings_them(all_jobs: AllJobs, records: AllRecords):
    patient = await opened(all_jobs, NEVER_POLL)
    quick = await opened(all_jobs, 0.05)
    job_id = records.new_job()
    await quick.got(job_id, "pending")
    await patient.got(job_id, "pending")
    for reading in (patient, quick):
        await reading.leave()


async def test_what_happened_between_two_looks_is_told_step_by_step(all_jobs: AllJobs, records: AllRecords):
    reading = await opened(all_jobs, NEVER_POLL)
    job_id = records.new_job()
    records.go(job_id, "pending", "running")
    records.go(job_id, "running", "completed")
    records.store.write(delete_job, job_id)
    records.hint({job_id})
    await reading.got(job_id, "pending", "running", "completed", "deleted")
    await reading.leave()


async def test_what_was_there_before_is_no_news_but_what_becomes_of_it(all_jobs: AllJobs, records: AllRecords):
    waiting, running = records.new_job(), records.new_job()
    records.go(running, "pending", "running")
    reading = await opened(all_jobs)
    records.go(running, "running", "completed")
    await reading.got(running, "completed")
    records.go(waiting, "pending", "running")
    await reading.got(waiting, "running")
    await reading.leave()


async def test_nobody_following_costs_no_read_also_when_hints_come(all_jobs: AllJobs, records: AllRecords):
    reading = await opened(all_jobs, 0.02)
    await reading.leave()
    await asyncio.sleep(0.1)
    before = records.reads
    for _ in range(20):
        records.hint({records.new_job()})
        await asyncio.sleep(0.02)
    assert records.reads == before


async def test_two_hundred_streams_are_read_as_one_and_open_together(all_jobs: AllJobs, records: AllRecords):
    async def reads_while(streams: int) -> tuple[int, int]:
        """The reads for opening them, and those for three jobs that come and go."""
        before = records.reads
        readings = await asyncio.gather(*(opened(all_jobs, NEVER_POLL) for _ in range(streams)))
        opening, before = records.reads - before, records.reads
        for _ in range(3):
            job_id = records.new_job()
            records.hint({job_id})
            for reading in readings:
                await reading.got(job_id, "pending")
        changing = records.reads - before
        await asyncio.gather(*(reading.leave() for reading in readings))
        return opening, changing

    assert (await reads_while(1)) == (1, 3)
    opening, changing = await reads_while(200)
    assert opening <= 3
    assert changing <= 6, "a look for each hint, whoever follows"


async def test_streams_that_come_back_together_share_what_they_missed(all_jobs: AllJobs, records: AllRecords):
    reading = await opened(all_jobs, NEVER_POLL)
    await reading.leave()
    missed = [records.new_job() for _ in range(3)]
    before = records.reads
    readings = await asyncio.gather(*(opened(all_jobs, NEVER_POLL, reading.last_id) for _ in range(100)))
    for each in readings:
        for job_id in missed:
            await each.got(job_id, "pending")
    assert records.reads - before <= 10, "looks and pages for all, not a page for each"
    await asyncio.gather(*(each.leave() for each in readings))


async def test_hints_that_come_together_share_a_look(all_jobs: AllJobs, records: AllRecords):
    reading = await opened(all_jobs, NEVER_POLL)
    before, loop = records.reads, asyncio.get_running_loop()
    began = loop.time()
    ids = [records.new_job() for _ in range(100)]
    for job_id in ids:
        records.hint({job_id})
        await asyncio.sleep(0.001)
    await reading.got(ids[-1], "pending")
    assert records.reads - before <= (loop.time() - began) / all_jobs_module.SHORTEST_LOOK_SECONDS + 2
    await reading.leave()


async def test_an_outage_only_delays_open_streams_and_is_told_to_who_opens_one(all_jobs: AllJobs, records: AllRecords):
    reading = await opened(all_jobs)
    records.failing = True
    job_id = records.new_job()
    with pytest.raises(DatabaseUnavailable):
        await open_all_jobs_stream(all_jobs, JobFilter(), 0.5, None)
    records.go(job_id, "pending", "running")
    assert job_id not in reading.told
    records.failing = False
    await reading.got(job_id, "pending", "running")
    await reading.leave()


async def test_who_opens_a_stream_while_a_look_hangs_waits_for_no_second_one(all_jobs: AllJobs, records: AllRecords):
    reading = await opened(all_jobs, 0.02)
    hangs, goes_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        hangs.set()
        await goes_on.wait()
        raise DatabaseUnavailable("no answer in time")

    records.before_look = hang
    await asyncio.wait_for(hangs.wait(), SOON)
    opening = asyncio.create_task(open_all_jobs_stream(all_jobs, JobFilter(), 0.5, None))
    await asyncio.sleep(0)
    hangs.clear()
    goes_on.set()
    with pytest.raises(DatabaseUnavailable):
        await asyncio.wait_for(opening, SOON)
    assert not hangs.is_set()
    records.before_look = None
    await reading.leave()


async def test_closing_ends_every_stream_at_once_with_whole_frames_and_refuses_new_ones(
    hub: Hub, all_jobs: AllJobs, records: AllRecords
):
    readings = [await opened(all_jobs, NEVER_POLL) for _ in range(5)]
    hub.close()
    for reading in readings:
        await asyncio.wait_for(reading.client.call, SOON)
        assert reading.text.endswith("\n\n")
        assert reading.client.sent[-1]["more_body"] is False
    with pytest.raises(ShuttingDown):
        await open_all_jobs_stream(all_jobs, JobFilter(), 0.5, None)


async def test_closing_answers_who_is_just_opening_a_stream(hub: Hub, records: AllRecords):
    never_read = AllJobs(records, hub)
    opening = asyncio.create_task(open_all_jobs_stream(never_read, JobFilter(), 0.5, None))
    await asyncio.sleep(0.05)
    hub.close()
    with pytest.raises(ShuttingDown):
        await asyncio.wait_for(opening, SOON)
    assert never_read.open_streams() == 0


async def test_silence_is_broken_by_comments_also_while_only_others_have_news(
    all_jobs: AllJobs, records: AllRecords, monkeypatch: pytest.MonkeyPatch
):
    assert follower_module.SILENCE_SECONDS < 15
    monkeypatch.setattr(follower_module, "SILENCE_SECONDS", 0.1)
    reading = await opened(all_jobs, 0.02, task="nobody runs it")

    async def noise() -> None:
        while True:
            records.new_job()
            await asyncio.sleep(0.02)

    noisy = asyncio.create_task(noise())
    first = reading.last_id
    chunks = await reading.client.got(4)
    noisy.cancel()
    assert all(chunk.startswith(b": keep-alive\nid: ") for chunk in chunks)
    assert reading.last_id != first, "and what the others had is behind this client too"
    await reading.leave()


async def test_a_client_that_was_away_resumes_from_an_id_that_came_without_an_event(
    all_jobs: AllJobs, records: AllRecords
):
    reading = await opened(all_jobs)
    await reading.leave()
    missed, deleted = records.new_job(), records.new_job()
    records.go(missed, "pending", "running")
    records.store.write(delete_job, deleted)
    reading = await opened(all_jobs, NEVER_POLL, reading.last_id)
    await reading.got(missed, "pending", "running")
    records.go(missed, "running", "completed")
    records.hint({missed})
    await reading.got(missed, "pending", "running", "completed")
    assert deleted not in reading.told
    await reading.leave()


async def test_an_id_from_the_future_begins_from_now(all_jobs: AllJobs, records: AllRecords):
    old = records.new_job()
    reading = await opened(all_jobs, last_event_id="999999999")
    job_id = records.new_job()
    await reading.got(job_id, "pending")
    assert old not in reading.told
    await reading.leave()


async def test_an_id_may_name_transactions_that_were_open(all_jobs: AllJobs, records: AllRecords):
    late, seen, new = (records.new_job() for _ in range(3))
    look = await records.everything_since(Mark(0), None, None, 10)
    places = {changed.row.id: changed.change for changed in look.rows}
    reading = await opened(all_jobs, last_event_id=f"{places[new]}.{places[late]}")
    await reading.got(new, "pending")
    await reading.got(late, "pending")
    assert seen not in reading.told
    await reading.leave()


async def test_a_job_that_changes_while_a_client_catches_up_is_told_once(all_jobs: AllJobs, records: AllRecords):
    reading = await opened(all_jobs)
    await reading.leave()
    ids = [records.new_job() for _ in range(3)]
    steps = iter([("pending", "running"), ("running", "completed")])

    async def meanwhile() -> None:
        step = next(steps, None)
        if step is not None:
            for job_id in ids:
                records.go(job_id, *step)
            records.hint(set(ids))

    records.before_look = meanwhile
    reading = await opened(all_jobs, 0.02, reading.last_id)
    for job_id in ids:
        await reading.got(job_id, "pending", "running", "completed")
    await reading.leave()
