"""The scheduler for Python callers, alone in a program, with the worker that it brings."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import signature
from ulid import ULID

from celery_jobs.api import CeleryScheduler, JobStatus, SubmitOptions
from celery_jobs.records.settings import Settings
from celery_jobs.tasks import job
from tests.unit.calling import Point, nap, outcome, shift, until

UNKNOWN = ULID()
RESULT = ULID()


@job
def artifact() -> ULID:
    return RESULT


async def test_unknown_ids_are_key_errors_everywhere(scheduler: CeleryScheduler):
    for call in (
        scheduler.get_status,
        scheduler.get_record,
        scheduler.cancel,
        scheduler.delete,
        scheduler.wait,
        scheduler.get_result,
    ):
        with pytest.raises(KeyError, match=str(UNKNOWN)):
            await call(UNKNOWN)


async def test_waiting_and_results(scheduler: CeleryScheduler):
    job_id = await scheduler.add_job(nap)
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.05 s"):
        await scheduler.wait(job_id, timeout=0.05)
    with pytest.raises(RuntimeError, match=r"is (pending|running)"):
        await scheduler.get_result(job_id)
    waiting = asyncio.create_task(scheduler.wait(job_id))
    await until(scheduler, job_id, JobStatus.running)
    await scheduler.delete(job_id)
    with pytest.raises(KeyError):
        await asyncio.wait_for(waiting, 10)
    failing = await scheduler.add_job(lambda: 1 / 0)
    await scheduler.wait(failing, 10)
    with pytest.raises(RuntimeError, match="is failed: ZeroDivisionError: division by zero"):
        await scheduler.get_result(failing)
    assert await outcome(scheduler, artifact) == str(RESULT)
    assert (await scheduler.get_all_records())[0].artifact_id == RESULT


async def test_cancel_says_whether_there_was_anything_left_to_cancel(scheduler: CeleryScheduler):
    await scheduler.set_max_concurrency(1)
    running, waiting = await scheduler.add_job(nap), await scheduler.add_job(nap)
    await until(scheduler, running, JobStatus.running)
    assert await scheduler.cancel(waiting) is True
    assert await scheduler.get_status(waiting) is JobStatus.canceled
    assert await scheduler.cancel(waiting) is False
    assert await scheduler.cancel(str(running)) is True
    await scheduler.wait(running, 10)
    assert await scheduler.cancel(running) is False


async def test_a_limit_is_checked_and_acts_at_once(scheduler: CeleryScheduler):
    for wrong in (0, -1, True, "2"):
        with pytest.raises(ValueError, match="at least 1"):
            await scheduler.set_max_concurrency(wrong)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        await scheduler.set_max_concurrency(1, queue="unknown")
    await scheduler.set_max_concurrency(1)
    first, second = await scheduler.add_job(nap), await scheduler.add_job(nap)
    await until(scheduler, first, JobStatus.running)
    assert await scheduler.get_status(second) is JobStatus.pending
    await scheduler.set_max_concurrency(None)
    await until(scheduler, second, JobStatus.running)


async def test_options_and_what_a_signature_says(scheduler: CeleryScheduler):
    soon = datetime.now(UTC) + timedelta(hours=1)
    options = SubmitOptions(priority=3, tags=["a", "b"], run_at=soon, expires_in_seconds=7200)
    record = await scheduler.get_record(await scheduler.submit(nap, 1, options=options))
    assert (record.priority, record.tags, record.run_at) == (3, ["a", "b"], soon)
    assert record.expires_at is not None
    assert record.expires_at > soon
    later = signature(shift.name, (Point(x=1),), countdown=3600, queue="elsewhere", priority=9)
    record = await scheduler.get_record(await scheduler.add_job(later))
    assert (record.queue, record.priority) == ("elsewhere", 9)
    assert record.run_at is not None
    assert abs(record.run_at - soon) < timedelta(minutes=1)
    assert (await scheduler.get_record(await scheduler.add_job(shift, Point(x=1)))).priority == 7
    naive = datetime(2030, 1, 1)  # noqa: DTZ001
    for wrong in ({"priority": 101}, {"tags": "ab"}, {"tags": [""]}, {"run_at": naive}, {"expires_in_seconds": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await scheduler.submit(nap, options=SubmitOptions(**wrong))  # type: ignore[arg-type]


async def test_an_idempotency_key_gives_the_first_job_again(scheduler: CeleryScheduler):
    once = SubmitOptions(idempotency_key="report-1")
    first = await scheduler.submit(nap, 0, options=once)
    assert await scheduler.submit(nap, 0, options=once) == first
    with pytest.raises(Exception, match="used before with another request"):
        await scheduler.submit(nap, 1, options=once)


async def test_shutdown_drains_cancels_and_refuses(tmp_path: Path):
    scheduler = CeleryScheduler(settings=Settings(data_dir=tmp_path))
    quick, long = await scheduler.add_job(nap, 0.3), await scheduler.add_job(nap)
    await until(scheduler, quick, JobStatus.running)
    await until(scheduler, long, JobStatus.running)
    waiting = asyncio.create_task(scheduler.wait(long))
    await scheduler.shutdown(timeout=1)
    await asyncio.wait([waiting], timeout=5)
    assert waiting.done()
    waiting.exception()
    with pytest.raises(RuntimeError, match="shutting down"):
        await scheduler.add_job(nap)
    async with CeleryScheduler(settings=Settings(data_dir=tmp_path)) as again:
        assert (ended := await again.get_record(quick)).status is JobStatus.completed, ended
        record = await again.get_record(long)
        assert record.status is JobStatus.canceled
        assert "shut down" in str(record.error)


async def test_what_only_a_process_that_ended_knew_fails_with_the_reason(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, shutdown_timeout_seconds=0)
    async with CeleryScheduler(max_concurrency=1, settings=settings) as scheduler:
        await until(scheduler, await scheduler.add_job(nap), JobStatus.running)
        lost = await scheduler.add_job(lambda: None)
    async with CeleryScheduler(settings=settings) as scheduler:
        await scheduler.wait(lost, 10)
        record = await scheduler.get_record(lost)
    assert record.status is JobStatus.failed
    assert "lived in a process that has ended" in str(record.error)


async def test_nothing_of_it_takes_messages_after_its_end(tmp_path: Path):
    """A worker that lived on would take what the next service of this process hands over, and end in its middle."""
    async with CeleryScheduler(settings=Settings(data_dir=tmp_path, shutdown_timeout_seconds=0)) as scheduler:
        await outcome(scheduler, nap, 0)
    assert "embedded-worker" not in {thread.name for thread in threading.enumerate()}
