"""Calls of Python callers at odd moments and with odd values."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from celery import signature
from pydantic import BeforeValidator, Field, PlainSerializer
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from ulid import ULID

from celery_jobs.api import CeleryScheduler, JobRecord, JobStatus, SubmitOptions
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import extra_json
from celery_jobs.records.settings import Settings
from celery_jobs.records.submit import CALL
from celery_jobs.tasks import app, call, job, metrics
from celery_jobs.tasks.ends import Ends
from tests.support.waiting import wait_until
from tests.unit.calling import eventually, nap, outcome, until


@job
def mail(connection: str, options: dict[str, int] | None = None) -> list[object]:
    return [connection, options]


def twice(text: str) -> str:
    return text * 2


async def test_arguments_of_any_name_reach_the_task(scheduler: CeleryScheduler):
    assert await outcome(scheduler, mail, connection="smtp", options={"a": 1}) == ["smtp", {"a": 1}]
    assert await outcome(scheduler, mail.s(connection="smtp")) == ["smtp", None]


class _SilentHints:
    """Hints that are all lost."""

    def listen(self, _callback: Any) -> None: ...


async def test_an_end_whose_hint_was_lost_is_seen_while_others_come_and_go(scheduler: CeleryScheduler):
    ended = await scheduler.add_job(nap, 0)
    await scheduler.wait(ended)
    running = await scheduler.add_job(nap)
    ends = Ends(scheduler._running.store, _SilentHints())  # type: ignore[arg-type]
    first: Future[JobStatus] = ends.wait(JobId(str(running)))
    await until(scheduler, running, JobStatus.running)
    stop = threading.Event()

    def others() -> None:
        while not stop.wait(0.2):  # more often than the look that needs no hint
            ends.wait(JobId(str(ended))).result(10)

    busy = threading.Thread(target=others)
    busy.start()
    try:
        await scheduler.cancel(running)
        assert await asyncio.to_thread(first.result, 10) is JobStatus.canceled
    finally:
        stop.set()
        busy.join()
        ends.close()


async def test_a_thousand_wait_for_one_job_and_some_give_up(scheduler: CeleryScheduler):
    job_id = await scheduler.add_job(nap, 0.3)
    waiting = [asyncio.create_task(scheduler.wait(job_id)) for _ in range(1000)]
    impatient = [asyncio.create_task(scheduler.wait(job_id, timeout=0.01)) for _ in range(100)]
    gave_up = await asyncio.gather(*impatient, return_exceptions=True)
    assert all(isinstance(each, TimeoutError) for each in gave_up)
    await asyncio.wait_for(asyncio.gather(*waiting), 10)


async def test_a_key_for_what_cannot_be_compared_is_refused(scheduler: CeleryScheduler):
    once = SubmitOptions(idempotency_key="k")
    with pytest.raises(ValueError, match="arguments that can be compared"):
        await scheduler.submit(partial(twice, "a"), options=once)
    assert await scheduler.submit(twice, "a", options=once) == await scheduler.submit(twice, "a", options=once)
    with pytest.raises(Exception, match="used before"):
        await scheduler.submit(twice, "b", options=once)
    assert not call.held


async def test_a_caller_who_gives_up_makes_no_job_fail(scheduler: CeleryScheduler):
    """Its submit may be recorded all the same, and then its function must be there."""
    given_up = [asyncio.create_task(scheduler.add_job(lambda: "done")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for each in given_up:
        each.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)

    async def all_ended() -> bool:
        return all(record.finished_at for record in await scheduler.get_all_records())

    await eventually(all_ended)
    assert {record.status for record in await scheduler.get_all_records()} <= {JobStatus.completed}


@pytest.mark.parametrize("priority", [1000, -1, 1.5, True, "5"])
async def test_a_priority_is_checked_wherever_it_stands(scheduler: CeleryScheduler, priority: Any):
    with pytest.raises(ValueError, match="priority must be a whole number"):
        await scheduler.submit(nap, 0, options=SubmitOptions(priority=priority))
    with pytest.raises(ValueError, match="priority must be a whole number"):
        await scheduler.add_job(signature(nap.name, (0,), priority=priority))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_what_a_coroutine_raises_ends_its_job_and_nothing_else(
    scheduler: CeleryScheduler, error: type[BaseException]
):
    async def raising() -> None:
        raise error("mine")

    job_id = await scheduler.add_job(raising)
    await scheduler.wait(job_id, 10)
    assert (await scheduler.get_record(job_id)).status is JobStatus.failed
    assert await outcome(scheduler, twice, "a") == "aa"


async def test_a_message_says_nothing_about_what_a_function_is_called_with(scheduler: CeleryScheduler):
    await scheduler.set_max_concurrency(1)
    first = await scheduler.add_job(nap)
    await until(scheduler, first, JobStatus.running)
    job_id = await scheduler.add_job(twice, "mine")
    app.send_task(CALL, args=["theirs"], task_id=str(job_id), queue="jobs")
    await scheduler.cancel(first)
    await scheduler.wait(job_id, 10)
    assert await scheduler.get_result(job_id) == "minemine"


async def test_submits_of_one_transaction_are_told_once_and_only_if_it_commits(
    scheduler: CeleryScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    counted: list[str] = []
    monkeypatch.setattr(metrics, "submitted", lambda task, _queue: counted.append(task))
    engine = create_engine(f"sqlite:///{tmp_path}/jobs.db")
    threads = threading.active_count()
    with engine.connect() as connection:
        for _ in range(50):
            await scheduler.submit(twice, "a", connection=connection)
        connection.rollback()
        for _ in range(50):
            await scheduler.submit(nap, 0, connection=connection)
        assert threading.active_count() < threads + 25
        with connection.begin_nested() as savepoint:
            await scheduler.submit(twice, "a", connection=connection)
            savepoint.rollback()
        connection.commit()
    wait_until(lambda: len(counted) >= 50, "they are told")
    connection = engine.connect()
    with connection.begin():
        pass
    assert set(counted) == {nap.name}
    assert len(await scheduler.get_all_records()) == len(counted) == 50
    connection.close()


async def test_a_connection_without_a_transaction_is_refused(scheduler: CeleryScheduler, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    whole = create_engine(url, isolation_level="AUTOCOMMIT")
    for engine in (whole, create_engine(url).execution_options(isolation_level="AUTOCOMMIT")):
        with engine.connect() as connection, pytest.raises(ValueError, match="commits each statement"):
            await scheduler.submit(nap, 0, connection=connection)
    assert await scheduler.get_all_records() == []


async def test_an_asynchronous_transaction_inside_the_embedded_service(scheduler: CeleryScheduler, tmp_path: Path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/jobs.db")
    async with engine.begin() as connection:
        job_id = await scheduler.submit(twice, "b", connection=connection)
    await scheduler.wait(job_id, 10)
    assert await scheduler.get_result(job_id) == "bb"
    await engine.dispose()


class OddRecord(JobRecord):
    words: Annotated[
        list[str],
        BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value),
        PlainSerializer(",".join),
    ] = Field(default_factory=list)
    day: Annotated[date | None, Field(strict=True)] = None


def test_fields_of_ones_own_come_back_as_they_were(tmp_path: Path):
    class Odd(CeleryScheduler):
        def _make_record(self, job_id: ULID, submitted_at: Any) -> JobRecord:
            return OddRecord(
                id=job_id, status=JobStatus.pending, submitted_at=submitted_at, words=["a", "b"], day=date(2026, 1, 2)
            )

    async def made() -> JobRecord:
        async with Odd(settings=Settings(data_dir=tmp_path, shutdown_timeout_seconds=0)) as scheduler:
            return await scheduler.get_record(await scheduler.add_job(nap, 0))

    record = asyncio.run(made())
    assert isinstance(record, OddRecord)
    assert (record.words, record.day) == (["a", "b"], date(2026, 1, 2))
    assert extra_json(record) is not None


async def test_a_second_scheduler_of_the_process_shares_the_first_or_is_refused(
    scheduler: CeleryScheduler, tmp_path: Path
):
    running = await scheduler.add_job(nap)
    await until(scheduler, running, JobStatus.running)
    async with CeleryScheduler(settings=scheduler.settings) as second:
        assert await outcome(second, twice, "b") == "bb"
    with pytest.raises(Exception, match="a scheduler on another database already"):
        await CeleryScheduler(settings=Settings(data_dir=tmp_path / "other")).add_job(nap)
    assert await scheduler.get_status(running) is JobStatus.running
    assert await outcome(scheduler, twice, "a") == "aa"


async def test_a_scheduler_in_a_task_is_that_of_its_process(tmp_path: Path):
    """Its database and its hooks, whatever the environment says."""

    class Odd(CeleryScheduler):
        def _make_record(self, job_id: ULID, submitted_at: Any) -> JobRecord:
            return OddRecord(id=job_id, status=JobStatus.pending, submitted_at=submitted_at, words=["hooked"])

    async def outer() -> str:
        async with CeleryScheduler() as inner:
            return str(await inner.add_job(twice, "a"))

    async with Odd(settings=Settings(data_dir=tmp_path, shutdown_timeout_seconds=0)) as scheduler:
        record = await scheduler.get_record(await outcome(scheduler, outer))
        await scheduler.wait(record.id, 10)
    assert isinstance(record, OddRecord)
    assert record.words == ["hooked"]


async def test_one_coroutine_is_one_job(scheduler: CeleryScheduler):
    await scheduler.set_max_concurrency(1)
    coroutine = asyncio.sleep(60)
    first = await scheduler.add_job(coroutine)
    with pytest.raises(TypeError, match="another job's"):
        await scheduler.add_job(coroutine)
    await until(scheduler, first, JobStatus.running)
    with pytest.raises(TypeError, match="awaited already"):
        await scheduler.add_job(coroutine)
    assert await scheduler.get_status(first) is JobStatus.running


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "q" * 201},
        {"eta": "tomorrow"},
        {"countdown": 1e18},
        {"countdown": "x"},
        {"queue": 5},
        {"queue": ""},
        {"expires": "x"},
    ],
    ids=str,
)
async def test_odd_options_of_a_signature_are_refused(scheduler: CeleryScheduler, options: dict[str, Any]):
    with pytest.raises(ValueError, match=r"eta|queue|expires"):
        await scheduler.add_job(signature(nap.name, (0,), **options))


async def test_an_argument_that_refers_to_itself_is_refused(scheduler: CeleryScheduler):
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(TypeError, match="cannot cross"):
        await scheduler.add_job(mail, "a", {"b": itself})


def test_a_child_that_is_forked_while_ids_are_made_makes_its_own():
    program = """
import os, sys, threading
from celery_jobs.records.ids import new_job_id
def busy():
    while True: new_job_id()
for _ in range(2): threading.Thread(target=busy, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if not child:
        new_job_id()
        os._exit(0)
    os.waitpid(child, 0)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
