"""What `add_job` takes and what it refuses, in a program with the worker that it brings."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from celery import chain, chord, group, signature

from celery_jobs.api import CeleryScheduler, JobStatus
from celery_jobs.tasks import JobTask, app, current_job, job
from celery_jobs.tasks.compute import compute
from tests.unit.calling import Point, eventually, nap, outcome, shift, until


@job
def several(first: int, *rest: int, **named: int) -> list[object]:
    return [first, list(rest), named]


def module_function(when: datetime, number: int = 0) -> list[str | int]:
    return [type(when).__name__, number]


async def module_coroutine(value: str) -> str:
    await asyncio.sleep(0)
    return value.upper()


@app.task(name="plain.task")
def plain_task() -> None:
    raise AssertionError("it has no record, so nobody runs it")


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
    assert await outcome(scheduler, time.sleep, 0) is None


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
        (3, "nobody can call what is of type int"),
        (None, "NoneType"),
        (group(compute.s(1), compute.s(2)), "a group is several tasks"),
        (chain(compute.s(1), compute.s(2)), "a chain is several tasks"),
        (chord([compute.s(1)], compute.s(2)), "a chord is several tasks"),
        (compute.map([1, 2]), "several tasks"),
        (signature("compute", (1,), link=compute.s(2)), "options link"),
        (signature("compute", (1,), task_id="mine"), "options task_id"),
        (plain_task, "decorate it with @job"),
    ],
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
