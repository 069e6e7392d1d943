"""Python callers beside real services: scripts, code inside of tasks, and transactions of the caller's own."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.kinds import each
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, THREADS, Kind, Stack


@pytest.fixture(scope="module", params=each(PREFORK, EMBEDDED, SQLITE, THREADS), ids=str)
def shop(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    kind: Kind = request.param
    return start_stack(kind, JOBS_IMPORTS="shop,sample")


@pytest.fixture
def script(shop: Stack) -> Callable[[str], Any]:
    """Runs a program of the user's in the service's folder; what it prints as JSON."""

    def run(code: str) -> Any:
        start = "import json, shop\nfrom celery_jobs.tasks import SyncScheduler\n"
        return json.loads(shop.service.python(start + textwrap.dedent(code)).splitlines()[-1])

    return run


def test_a_script_submits_waits_and_reads(shop: Stack, script: Callable[[str], Any]):
    told = script("""
        with SyncScheduler() as scheduler:
            job = scheduler.add_job(shop.double, number=21)
            scheduler.wait(job, timeout=20)
            record = scheduler.get_record(job)
            listed = [str(each.id) for each in scheduler.get_all_records()]
            print(json.dumps([str(job), scheduler.get_result(job), record.status, str(job) in listed]))
    """)
    assert told[1:] == [42, "completed", True]
    assert shop.jobs.result(told[0])["result"] == 42


def test_a_function_of_a_module_runs_in_the_workers_process(shop: Stack, script: Callable[[str], Any]):
    told = script("""
        import os
        with SyncScheduler() as scheduler:
            job = scheduler.add_job(shop.plain_function, "ab", times=2)
            scheduler.wait(job, timeout=20)
            print(json.dumps([str(job), os.getpid(), scheduler.get_result(job)]))
    """)
    job_id, pid, result = told
    assert result["text"] == "abab"
    assert result["pid"] != pid
    assert shop.jobs.record(job_id)["task"] == "shop.plain_function"
    again = shop.jobs.client.post(f"/api/v1/jobs/{job_id}/$retry").json()["job_id"]
    shop.jobs.wait(again, "completed")
    assert shop.jobs.result(again)["result"]["text"] == "abab"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("lambda: 1", "a lambda has no name"),
        ("inner", "a function inside of another lives in the process"),
        ("method", "a method belongs to an object"),
        ("main", "defined in the program that was started"),
        ("partial", "a partial has no name"),
        ("coroutine()", "an awaitable lives in the process"),
    ],
)
def test_what_cannot_cross_to_the_workers_is_refused_with_the_reason(
    script: Callable[[str], Any], target: str, why: str
):
    told = script(f"""
        import functools
        def main(): pass
        def maker():
            def inner(): pass
            return inner
        inner, method, partial = maker(), {{}}.update and json.JSONEncoder().encode, functools.partial(main)
        class Awaitable:
            def __await__(self): yield
        coroutine = Awaitable
        with SyncScheduler() as scheduler:
            try:
                scheduler.add_job({target})
            except TypeError as error:
                print(json.dumps([str(error), len(scheduler.get_all_records())]))
    """)
    assert why in told[0]
    assert "a @job" in told[0]


def test_arguments_that_would_arrive_as_something_else_are_refused(script: Callable[[str], Any]):
    told = script("""
        from datetime import datetime
        errors = []
        with SyncScheduler() as scheduler:
            for value in (object(), b"bytes", {1, 2}):
                try:
                    scheduler.add_job(shop.plain_function, value)
                except TypeError as error:
                    errors.append(str(error))
        print(json.dumps(errors))
    """)
    assert len(told) == 3
    assert all("argument 'name' of shop.plain_function" in error for error in told)


def test_a_task_submits_another_and_takes_its_result(shop: Stack):
    job = shop.jobs.client.post("/api/v1/tasks/shop.outer", json={"number": 4}).json()["job_id"]
    shop.jobs.wait(job, "completed")
    result = shop.jobs.result(job)["result"]
    assert result == {"id": job, "inner": result["inner"], "value": 8}
    assert shop.jobs.status(result["inner"]) == "completed"


def test_a_coroutine_submits_another_and_takes_its_result(shop: Stack):
    for number in (3, 4):  # the first has left everything as it was
        job = shop.jobs.client.post("/api/v1/tasks/shop.outer_async", json={"number": number}).json()["job_id"]
        shop.jobs.wait(job, "completed")
        assert shop.jobs.result(job)["result"] == 2 * number


def test_waiting_that_would_hold_up_the_loop_is_refused(shop: Stack):
    job = shop.jobs.client.post("/api/v1/tasks/shop.blocking", json={"number": 1}).json()["job_id"]
    record = shop.jobs.wait(job, "failed")
    assert "would hold up the event loop" in record["error"]


def test_a_scheduler_made_before_the_fork_has_connections_of_its_own_in_each_child(shop: Stack):
    jobs = [shop.jobs.client.post("/api/v1/tasks/shop.from_import", json={"times": 30}).json()["job_id"] for _ in "abc"]
    for job in jobs:
        shop.jobs.wait(job, "completed")


def test_a_script_cancels_deletes_and_limits(shop: Stack, script: Callable[[str], Any]):
    name = shop.name()
    running = shop.jobs.submit("hold_async", name=name)
    shop.journal.wait_start(running)
    ended, gone = shop.jobs.submit("noop"), shop.jobs.submit("noop")
    shop.jobs.wait(ended, "completed")
    shop.jobs.wait(gone, "completed")
    told = script(f"""
        with SyncScheduler() as scheduler:
            told = [scheduler.cancel("{running}")]
            scheduler.wait("{running}", timeout=10)
            told += [scheduler.cancel("{running}"), scheduler.cancel("{ended}")]
            scheduler.delete("{gone}")
            try:
                scheduler.get_record("{gone}")
            except KeyError:
                told.append("gone")
            try:
                scheduler.get_result("{running}")
            except RuntimeError as error:
                told.append(str(error))
            scheduler.set_max_concurrency(3)
            told.append("limited")
            print(json.dumps(told))
    """)
    assert told == [True, False, False, "gone", f"job {running} is canceled", "limited"]
    assert shop.jobs.queue()["max_concurrency"] == 3
    shop.jobs.change_queue(max_concurrency=None)


TRANSACTION = """
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session
    url = {url!r}
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS orders (name VARCHAR(20))"))
    told = []
    with SyncScheduler() as scheduler:
        for commits in (True, False):
            with Session(engine) as session:
                session.execute(text("INSERT INTO orders VALUES ('sync')"))
                job = scheduler.submit(shop.double, 3, connection=session)
                try:
                    scheduler.get_record(job)
                    told.append("seen too early")
                except KeyError:
                    pass
                session.commit() if commits else session.rollback()
            told.append(str(job))
        with engine.begin() as connection:
            told.append(str(scheduler.submit(shop.double, 4, connection=connection)))
        scheduler.wait(told[0], timeout=20)
        scheduler.wait(told[2], timeout=20)
    with engine.begin() as connection:
        told.append(connection.execute(text("SELECT count(*) FROM orders")).scalar())
    print(json.dumps(told))
"""


def test_a_job_exists_if_and_only_if_the_callers_transaction_commits(shop: Stack, script: Callable[[str], Any]):
    url = shop.database_url.replace("postgresql://", "postgresql+psycopg://")
    committed, rolled_back, second, orders = script(TRANSACTION.format(url=url))
    assert shop.jobs.result(committed)["result"] == 6
    assert shop.jobs.result(second)["result"] == 8
    assert shop.jobs.client.get(f"/api/v1/jobs/{rolled_back}").status_code == 404
    assert orders >= 1


ASYNC_TRANSACTION = """
    import asyncio
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from celery_jobs.api import CeleryScheduler, SubmitOptions

    async def main():
        engine = create_async_engine({url!r})
        told = []
        async with CeleryScheduler() as scheduler:
            for commits in (True, False):
                async with AsyncSession(engine) as session:
                    options = SubmitOptions(tags=["mine"])
                    job = await scheduler.submit(shop.double, 5, connection=session, options=options)
                    await (session.commit() if commits else session.rollback())
                told.append(str(job))
            async with engine.begin() as connection:
                told.append(str(await scheduler.submit(shop.plain_function, "x", connection=connection)))
            await scheduler.wait(told[0], timeout=20)
            await scheduler.wait(told[2], timeout=20)
            try:
                async with create_async_engine("sqlite+aiosqlite://").begin() as other:
                    await scheduler.submit(shop.double, 5, connection=other)
            except ValueError as error:
                told.append(str(error))
            try:
                await scheduler.submit(shop.double, 5, connection="postgresql://")
            except TypeError as error:
                told.append(str(error))
        await engine.dispose()
        print(json.dumps(told))

    asyncio.run(main())
"""


def test_the_same_with_asynchronous_connections(shop: Stack, script: Callable[[str], Any]):
    if shop.kind.embedded:
        pytest.skip("one process at a time is the embedded service; tests/unit/test_scheduler.py does it inside")
    url = shop.database_url.replace("postgresql://", "postgresql+psycopg://").replace("sqlite:", "sqlite+aiosqlite:")
    committed, rolled_back, second, elsewhere, none = script(ASYNC_TRANSACTION.format(url=url))
    assert shop.jobs.result(committed)["result"] == 10
    assert shop.jobs.record(committed)["tags"] == ["mine"]
    assert shop.jobs.result(second)["result"]["text"] == "x"
    assert shop.jobs.client.get(f"/api/v1/jobs/{rolled_back}").status_code == 404
    assert "another database" in elsewhere
    assert "AsyncSession" in none
