"""Streams of a scheduler that announces nothing: looked at, no status skipped, none told twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from fastapi import FastAPI
from ulid import ULID

from celery_jobs.api import JobRecord, JobStatus, Progress
from celery_jobs.api.plugged.sighting import Sighting, gone, same, sight
from celery_jobs.api.stream.feed import REREAD_SECONDS
from celery_jobs.api.stream.frame import Key, Rank, events_after, key_of
from celery_jobs.records.states import CancelMode
from tests.support.plugged import ByHand, Film, Listener, plugged, problem_of
from tests.support.waiting import wait_until_async


@pytest.fixture
def scheduler() -> ByHand:
    return ByHand()


@pytest_asyncio.fixture
async def app(scheduler: ByHand) -> AsyncIterator[FastAPI]:
    app = plugged(scheduler).with_jobs().with_health().build()
    async with app.router.lifespan_context(app):
        yield app


def path_of(job_id: ULID) -> str:
    return f"/api/v1/jobs/{job_id}/$stream?poll_interval=0.05"


async def test_a_stream_tells_each_status_and_ends(scheduler: ByHand, app: FastAPI):
    job_id = scheduler.put(record_class=Film)
    stream = await Listener(app, path_of(job_id)).opened()
    await stream.told("pending")
    scheduler.change(job_id, "running")
    await stream.told("pending", "running")
    scheduler.change(job_id, "completed", reel="last")
    assert await stream.ended() == ["pending", "running", "completed"]
    assert stream.ids == ["0-0-0", "1-1-0", "1-4-0"]
    assert [event["reel"] for event in stream.events] == ["first", "first", "last"], "a live record, as it was then"
    again = Listener(app, path_of(job_id), "1-4-0")
    await asyncio.wait_for(again.call, 5)
    assert again.status == 204
    assert await Listener(app, path_of(job_id), "0-0-0").ended() == ["running", "completed"]


async def test_statuses_between_two_looks_are_not_skipped(scheduler: ByHand, app: FastAPI):
    job_id = scheduler.put()
    stream = await Listener(app, path_of(job_id)).opened()
    scheduler.change(job_id, "running")
    scheduler.change(job_id, "completed")
    assert await stream.ended() == ["pending", "running", "completed"]


async def test_a_cancel_over_http_is_told_at_once(scheduler: ByHand, app: FastAPI):
    job_id = scheduler.put("running")
    stream = await Listener(app, f"/api/v1/jobs/{job_id}/$stream?poll_interval=60").opened()
    await stream.told("running")
    began = asyncio.get_running_loop().time()
    async with serving_client(app) as client:
        await client.post(f"/api/v1/jobs/{job_id}/$cancel")
        await stream.told("running", "canceling")
        scheduler.change(job_id, "canceled")
        await client.post(f"/api/v1/jobs/{job_id}/$cancel")
    assert asyncio.get_running_loop().time() < began + REREAD_SECONDS / 2, "nobody waited for a look"
    assert await stream.ended() == ["running", "canceling", "canceled"]


@pytest.mark.parametrize("over_http", [True, False])
async def test_a_deletion_ends_the_stream(scheduler: ByHand, app: FastAPI, over_http: bool):
    job_id = scheduler.put("running")
    stream = await Listener(app, path_of(job_id)).opened()
    await stream.told("running")
    async with serving_client(app) as client:
        if over_http:
            assert (await client.delete(f"/api/v1/jobs/{job_id}")).status_code == 204
        else:
            await scheduler.delete(job_id)
        assert await stream.ended() == ["running", "deleted"]
        assert stream.events[-1] == {"status": "deleted"}
        assert problem_of(await client.get(path_of(job_id)), 404) == "not-found"


async def test_a_wait_ends_with_the_job_and_says_what_is_true_when_its_time_is_over(scheduler: ByHand, app: FastAPI):
    job_id = scheduler.put("running")
    async with serving_client(app) as client:
        early = await client.get(f"/api/v1/jobs/{job_id}", headers={"Prefer": "wait=0"})
        assert (early.json()["status"], early.headers["preference-applied"]) == ("running", "wait")
        waiting = asyncio.create_task(client.get(f"/api/v1/jobs/{job_id}", headers={"Prefer": "wait=20"}))
        await wait_until_async(lambda: watched(app), "the request waits")
        scheduler.change(job_id, "completed")
        assert (await asyncio.wait_for(waiting, 5)).json()["status"] == "completed"


async def test_trouble_of_the_scheduler_delays_a_stream_and_does_not_end_it(scheduler: ByHand, app: FastAPI):
    job_id = scheduler.put("running")
    stream = await Listener(app, path_of(job_id)).opened()
    await stream.told("running")
    scheduler.fails["get_record"] = OSError("away")
    asked = len(scheduler.told)
    await wait_until_async(lambda: asked_again(scheduler, asked), "the feed meets the trouble")
    scheduler.change(job_id, "completed")
    del scheduler.fails["get_record"]
    assert await stream.ended() == ["running", "completed"]


async def test_open_streams_end_before_the_scheduler_is_shut_down(scheduler: ByHand):
    app = plugged(scheduler).with_jobs().build()
    job_id = scheduler.put("running")
    async with app.router.lifespan_context(app):
        one = await Listener(app, path_of(job_id)).opened()
        every = await Listener(app, "/api/v1/jobs/$stream").opened()
        scheduler.hangs.add("shutdown")
        ending = asyncio.create_task(app.state.service.shutdown())
        app.state.hub.close()
        await asyncio.gather(one.ended(), every.ended())
        app.state.service.hurry()
        await ending
        scheduler.hangs.clear()


# --- all jobs


async def test_the_stream_of_all_jobs_tells_each_change_in_order(scheduler: ByHand, app: FastAPI):
    old = scheduler.put("running", task="old")
    await scheduler.get_all_records()
    stream = await Listener(app, "/api/v1/jobs/$stream?poll_interval=0.05").opened()
    new = scheduler.put(task="new")
    await stream.told("pending")
    scheduler.change(new, "running")
    scheduler.change(new, "completed")
    await stream.told("pending", "running", "completed")
    scheduler.change(old, "completed")
    await stream.told("pending", "running", "completed", "completed")
    await scheduler.delete(new)
    await stream.told("pending", "running", "completed", "completed", "deleted")
    assert stream.events[-1] == {"id": str(new), "status": "deleted"}
    assert stream.events[-2]["id"] == str(old)
    quick = scheduler.put("completed")
    await stream.told(*stream.statuses[:5], "pending", "running", "completed")
    assert {event["id"] for event in stream.events[5:]} == {str(quick)}
    await stream.leave()


async def test_the_stream_of_all_jobs_resumes_without_a_gap(scheduler: ByHand, app: FastAPI):
    first = scheduler.put("running")
    stream = await Listener(app, "/api/v1/jobs/$stream?poll_interval=0.05").opened()
    scheduler.change(first, tags=["seen"])
    await stream.told("running")
    await stream.leave()
    scheduler.change(first, "completed")
    second = scheduler.put("running")
    again = await Listener(app, "/api/v1/jobs/$stream?poll_interval=0.05", stream.ids[-1]).opened()
    await again.told("completed", "pending", "running")
    assert [event["id"] for event in again.events] == [str(first), str(second), str(second)]
    await again.leave()


async def test_whoever_comes_from_another_process_is_told_how_each_job_is_now(scheduler: ByHand, app: FastAPI):
    jobs = {str(scheduler.put(status)): status for status in ("pending", "running", "completed")}
    stream = await Listener(app, "/api/v1/jobs/$stream?poll_interval=0.05", "1").opened()
    await stream.told(*jobs.values())
    assert {event["id"]: event["status"] for event in stream.events} == jobs
    await stream.leave()


async def test_a_job_that_fits_no_filter_is_not_told(scheduler: ByHand, app: FastAPI):
    stream = await Listener(app, "/api/v1/jobs/$stream?poll_interval=0.05&task=mine&status_filter=completed").opened()
    theirs, mine = scheduler.put(task="theirs"), scheduler.put(task="mine")
    scheduler.change(theirs, "completed")
    scheduler.change(mine, "completed")
    await stream.told("completed")
    assert stream.events[0]["id"] == str(mine)
    await stream.leave()


# --- what a record shows, and what was seen before


class Seen:
    """One job, looked at again and again."""

    def __init__(self) -> None:
        self.record = JobRecord(id=ULID(), status=JobStatus.pending, submitted_at=datetime.now(UTC))
        self.sighting: Sighting | None = None
        self.number = 0
        self.position = Key(0, Rank.pending, 0)
        self.told: list[str] = []

    def shows(self, status: str, **fields: Any) -> list[str]:
        """The events that a look brings, as `id status`."""
        self.record = self.record.model_copy(update={"status": JobStatus(status), **fields})
        self.number += 1
        if self.sighting is None or not same(self.record, self.sighting):
            self.sighting = sight(self.record, self.sighting, self.number)
        events = events_after(self.sighting.row, self.position)
        self.position = key_of(self.sighting.row)
        words = [event.frame.decode().split('"status":"')[1].partition('"')[0] for event in events]
        return [f"{event.key} {word}" for event, word in zip(events, words, strict=True)]


NOW = datetime.now(UTC)


def test_a_scheduler_that_counts_no_attempts_and_tells_no_times_is_followed_to_the_end():
    job = Seen()
    assert job.shows("pending") == []
    assert job.shows("running") == ["1-1-0 running"]
    assert job.shows("running") == []
    assert job.shows("canceling") == ["1-2-0 canceling"]
    assert job.shows("canceled") == ["1-4-0 canceled"]


def test_a_canceling_that_is_over_is_not_forgotten():
    job = Seen()
    job.shows("running", started_at=NOW)
    assert job.shows("canceling", cancel_requested_at=NOW) == ["1-2-0 canceling"]
    assert job.shows("canceled", finished_at=NOW) == ["1-4-0 canceled"]
    late = Seen()
    told = late.shows("canceled", started_at=NOW, cancel_requested_at=NOW, cancel_mode=CancelMode.wait)
    assert told == ["1-1-0 running", "1-2-0 canceling", "1-4-0 canceled"]


def test_one_that_never_started_has_no_running():
    assert Seen().shows("canceled") == ["0-4-0 canceled"]
    assert Seen().shows("failed", attempt=1) == ["0-4-0 failed"]
    assert Seen().shows("completed") == ["1-1-0 running", "1-4-0 completed"]


def test_a_job_that_waits_again_runs_again():
    job = Seen()
    job.shows("running")
    assert job.shows("pending") == ["1-3-0 pending"]
    assert job.shows("running") == ["2-1-0 running"]
    assert job.shows("completed") == ["2-4-0 completed"]
    counting = Seen()
    counting.shows("running", started_at=NOW, attempt=1)
    assert counting.shows("running", attempt=2) == ["1-3-0 pending", "2-1-0 running"]
    assert counting.shows("pending") == ["2-3-0 pending"]
    assert counting.shows("canceled") == ["2-4-0 canceled"]


def test_any_change_of_a_job_that_runs_is_told_like_progress():
    job = Seen()
    job.shows("running")
    assert job.shows("running", progress=Progress(current=1)) == ["1-1-1 running"]
    assert job.shows("running", tags=["a"]) == ["1-1-2 running"]
    assert job.shows("canceling") == ["1-2-2 canceling"]


def test_a_sighting_keeps_a_live_record_as_it_was_and_a_deletion_is_one():
    record = Film(id=ULID(), status=JobStatus.running, submitted_at=NOW, frames={"a": 1})
    first = sight(record, None, 1)
    record.frames["b"] = 2
    assert first.row.record.model_dump()["frames"] == {"a": 1}
    assert not same(record, first)
    assert gone(first, 2).row.deleted
    assert key_of(gone(first, 2).row) == (1, Rank.deleted, 0)
    assert not same(record, gone(sight(record, first, 2), 3)), "it is there again"


# --- small things


def serving_client(app: FastAPI) -> Any:
    import httpx

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8000", timeout=30)


async def watched(app: FastAPI) -> bool:
    return app.state.hub.open_streams() > 0


async def asked_again(scheduler: ByHand, asked: int) -> bool:
    return len(scheduler.told) > asked
