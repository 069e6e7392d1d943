"""The scheduler for Python callers, alone in a program, with the worker that it brings."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group, signature
from pydantic import BaseModel
from ulid import ULID

from celery_jobs.api import CeleryScheduler, JobStatus, SubmitOptions
from celery_jobs.records.settings import Settings
from celery_jobs.tasks import JobTask, app, current_job, job
from celery_jobs.tasks.compute import compute

UNKNOWN = ULID()
RESULT = ULID()


class Point(BaseModel):
    x: int
    y: int = 0


@job(priority=7)
def shift(point: Point, by: int = 1) -> Point:
    return Point(x=point.x + by, y=point.y)


@job
def several(first: int, *rest: int, **named: int) -> list[object]:
    return [first, list(rest), named]


@job
async def nap(seconds: float = 60) -> None:
    await asyncio.sleep(seconds)


@job
def artifact() -> ULID:
    return RESULT


def module_function(when: datetime, number: int = 0) -> list[str | int]:
    return [type(when).__name__, number]


async def module_coroutine(value: str) -> str:
    await asyncio.sleep(0)
    return value.upper()


@app.task(name="plain.task")
def plain_task() -> None:
    raise AssertionError("it has no record, so nobody runs it")


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[CeleryScheduler]:
    settings = Settings(data_dir=tmp_path, shutdown_timeout_seconds=0)
    async with CeleryScheduler(settings=settings) as scheduler:
        yield scheduler


async def outcome(scheduler: CeleryScheduler, target: Any, *args: Any, **kwargs: Any) -> Any:
    job_id = await scheduler.add_job(target, *args, **kwargs)
    assert isinstance(job_id, ULID)
    await scheduler.wait(job_id, timeout=10)
    return await scheduler.get_result(job_id)


async def until(scheduler: CeleryScheduler, job_id: ULID, status: JobStatus) -> None:
    async def reached() -> bool:
        return await scheduler.get_status(job_id) is status

    await eventually(reached)


async def eventually(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await fact():  # noqa: ASYNC110 — another thread makes it true
            await asyncio.sleep(0.01)


async def test_tasks_by_themselves_by_name_and_as_signatures(scheduler: CeleryScheduler):
    assert await outcome(scheduler, compute, 0.1) == 42
    assert await outcome(scheduler, "compute", duration=0.1) == 42
    assert await outcome(scheduler, compute.s(duration=0.1)) == 42
    assert await outcome(scheduler, shift, Point(x=1, y=5), by=2) == {"x": 3, "y": 5}
    assert await outcome(scheduler, shift.s(by=3), {"x": 1}) == {"x": 4, "y": 0}
    assert await outcome(scheduler, shift.si({"x": 1})) == {"x": 2, "y": 0}
    assert await outcome(scheduler, several, 1, 2, 3, four=4) == [1, [2, 3], {"four": 4}]


async def test_functions_of_a_module_travel_by_name_with_typed_arguments(scheduler: CeleryScheduler):
    job_id = await scheduler.add_job(module_function, datetime.now(UTC), number=3)
    await scheduler.wait(job_id, 10)
    assert await scheduler.get_result(job_id) == ["datetime", 3]
    record = await scheduler.get_record(job_id)
    assert (record.task, record.queue) == (f"{__name__}.module_function", "jobs")
    assert await outcome(scheduler, module_coroutine, "a") == "A"
    assert await outcome(scheduler, json.dumps, {"a": 1}) == '{"a": 1}'


async def test_what_lives_in_this_process_runs_where_it_was_made(scheduler: CeleryScheduler):
    """Coroutines on the loop that handed them over, so that they may use what belongs to it."""
    lock, loop, seen = asyncio.Lock(), asyncio.get_running_loop(), list[object]()

    async def inner(value: int) -> int:
        async with lock:
            seen.append((asyncio.get_running_loop() is loop, str(current_job.id)))
        return value * 2

    class Counter:
        def add(self, value: int) -> int:
            assert threading.current_thread() is not threading.main_thread()
            return value + 1

    assert await outcome(scheduler, inner, 4) == 8
    assert await outcome(scheduler, inner(5)) == 10
    assert [on_loop for on_loop, _ in seen] == [True, True]  # type: ignore[misc]
    assert await outcome(scheduler, lambda: "lambda") == "lambda"
    assert await outcome(scheduler, lambda: inner(6)) == 12
    assert await outcome(scheduler, Counter().add, 1) == 2
    assert await outcome(scheduler, partial(inner, 7)) == 14
    future = loop.create_future()
    loop.call_later(0.05, future.set_result, "future")
    assert await outcome(scheduler, future) == "future"
    held = object()
    assert await outcome(scheduler, lambda it: it is held, held) is True


async def test_their_records_are_like_all_others_and_cannot_be_retried(scheduler: CeleryScheduler):
    async def endless() -> None:
        await asyncio.sleep(60)

    job_id = await scheduler.add_job(endless)
    await until(scheduler, job_id, JobStatus.running)
    assert await scheduler.cancel(job_id) is True
    await scheduler.wait(job_id, 10)
    record = await scheduler.get_record(job_id)
    assert record.status is JobStatus.canceled
    assert record.task == f"{__name__}.{endless.__qualname__}"
    assert record.cancel_mode == "interrupt"
    with pytest.raises(Exception, match="lived in the process"):
        await scheduler.retry_job(str(job_id))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (3, "it is a int, which nobody can call"),
        (None, "NoneType"),
        (group(compute.s(1), compute.s(2)), "a group is several tasks"),
        (chain(compute.s(1), compute.s(2)), "a chain is several tasks"),
        (chord([compute.s(1)], compute.s(2)), "a chord is several tasks"),
        (compute.map([1, 2]), "several tasks"),
        (signature("compute", (1,), link=compute.s(2)), "options link"),
        (signature("compute", (1,), task_id="mine"), "options task_id"),
        (plain_task, "decorate it with @job"),
    ],
    ids=str,
)
async def test_what_can_be_no_job_is_a_type_error_that_says_why(scheduler: CeleryScheduler, target: Any, why: str):
    with pytest.raises(TypeError, match=why):
        await scheduler.add_job(target)
    assert await scheduler.get_all_records() == []


async def test_arguments_that_do_not_fit_are_errors_before_anything_is_recorded(scheduler: CeleryScheduler):
    for error, target, args in [
        (TypeError, compute, ()),
        (TypeError, compute, (1, 2)),
        (TypeError, several, (object(),)),
        (TypeError, lambda: None, (1,)),
        (ValueError, compute, ("long",)),
        (ValueError, compute, (1e9,)),
        (ValueError, compute, (float("nan"),)),
        (KeyError, "no.such.task", ()),
    ]:
        with pytest.raises(error):
            await scheduler.add_job(target, *args)
    coroutine = nap.run(1)
    with pytest.raises(TypeError, match="its arguments already"):
        await scheduler.add_job(coroutine, 1)
    coroutine.close()
    assert await scheduler.get_all_records() == []


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


async def test_the_task_that_runs_functions_is_nobodys_to_call(scheduler: CeleryScheduler):
    carrier: JobTask = app.tasks["celery_jobs.call"]
    with pytest.raises(KeyError):
        await scheduler.add_job("celery_jobs.call")
    with pytest.raises(TypeError):
        await scheduler.add_job(carrier)
    assert "celery_jobs.call" not in {task.name for task in scheduler.tasks()}
    carrier.delay("os:getcwd")

    async def ended() -> bool:
        return any(record.finished_at for record in await scheduler.get_all_records())

    await eventually(ended)
    [record] = await scheduler.get_all_records()
    assert record.status is JobStatus.failed
    assert "no function is recorded" in str(record.error)


async def test_nothing_of_it_takes_messages_after_its_end(tmp_path: Path):
    """A worker that lived on would take what the next service of this process hands over, and end in its middle."""
    async with CeleryScheduler(settings=Settings(data_dir=tmp_path, shutdown_timeout_seconds=0)) as scheduler:
        await outcome(scheduler, nap, 0)
    assert "embedded-worker" not in {thread.name for thread in threading.enumerate()}
