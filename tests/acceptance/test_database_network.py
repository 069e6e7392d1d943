"""The way to PostgreSQL fails: answers lost just after a commit, silence, no connection left (contract, 2, 3, 9)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
import pytest
from sqlalchemy import make_url

from tests.acceptance.kinds import own
from tests.support.moments import ANSWERED_SECONDS, RAW, ends_within, worker_rows
from tests.support.postgres import PostgresServer
from tests.support.proxy import Looks, Proxy, says
from tests.support.stack import PREFORK, Kind, Stack, migrate
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]
NewPostgres = Callable[[], PostgresServer]

T = 3.0
BUSY_SECONDS = 2.0  # what a busy machine adds


@contextmanager
def behind_proxy(
    new_stack: NewStack, kind: Kind, server: PostgresServer, **options: Any
) -> Generator[tuple[Stack, Proxy]]:
    """A deployment whose every connection to the database goes through the proxy; the test's own do not."""
    with Proxy(server.port).serving() as proxy:
        url = server.new_database(migrate)
        stack = new_stack(kind, DATABASE_URL=str(make_url(url).set(port=proxy.port)), **options)
        yield stack.start(), proxy


# what a process says to the database, by words that only this statement has
SUBMIT = says("INSERT INTO jobs")
HAND_OVER = says("published_at=statement_timestamp()")
CLAIM = says("claim_token=$")
END = says("result=CASE")
CANCEL = says("cancel_requested_at=coalesce")
DELETE = says("deleted_at=statement_timestamp()")


@own(PREFORK)
def test_what_was_committed_counts_once_and_what_was_refused_never(
    new_stack: NewStack, kind: Kind, postgres_server: PostgresServer
) -> None:
    env = {"JOBS_WORKER_TIMEOUT_SECONDS": f"{T:g}"}
    with behind_proxy(new_stack, kind, postgres_server, slots=2, **env) as (stack, proxy):
        jobs = [loses(proxy, lost, stack) for lost in (SUBMIT, HAND_OVER, CLAIM, END)]
        jobs.append(a_cancel_whose_answer_is_lost(stack, proxy))
        a_submit_while_the_database_is_frozen(stack, proxy)
        assert [record["id"] for record in stack.jobs.list()] == jobs[::-1]
        for job in jobs:
            assert len(stack.journal.starts(job)) == stack.jobs.record(job)["attempt"] == 1
        a_delete_whose_answer_is_lost(stack, proxy, jobs[-1])


def loses(proxy: Proxy, answer: Looks, stack: Stack) -> str:
    """A job that completes though the answer to one of its commits is lost."""
    before = proxy.cuts
    proxy.lose_answer(answer)
    job = stack.jobs.submit("note", mark="x")
    stack.jobs.wait(job, "completed")
    assert stack.jobs.result(job)["result"] == "x"
    wait_until(lambda: proxy.cuts > before, "an answer was lost")
    return job


def a_cancel_whose_answer_is_lost(stack: Stack, proxy: Proxy) -> str:
    job = stack.jobs.submit("hold_async", name=stack.name())
    stack.journal.wait_start(job)
    before = proxy.cuts
    proxy.lose_answer_to_commit_of(CANCEL)
    stack.jobs.cancel(job)
    assert proxy.cuts > before
    stack.jobs.wait(job, "canceled")
    return job


def a_submit_while_the_database_is_frozen(stack: Stack, proxy: Proxy) -> None:
    time.sleep(1.0)  # nothing is on its way
    proxy.silence()
    answer = stack.jobs.client.post("/api/v1/tasks/sample.note", json={})
    assert answer.status_code == 503
    assert "try again" in answer.json()["detail"]
    proxy.speak()
    wait_until(lambda: stack.jobs.client.get("/readyz").status_code == 200, "the API is ready again")
    time.sleep(1.0)  # for what the server was sent and would do now


def a_delete_whose_answer_is_lost(stack: Stack, proxy: Proxy, job: str) -> None:
    before = proxy.cuts
    proxy.lose_answer_to_commit_of(DELETE)
    stack.jobs.delete(job)
    assert proxy.cuts > before
    assert stack.jobs.client.get(f"/api/v1/jobs/{job}").status_code == 404


@pytest.mark.slow
@own(PREFORK)
def test_connections_that_stay_silent_for_ever_are_given_up(
    new_stack: NewStack, kind: Kind, postgres_server: PostgresServer
) -> None:
    with behind_proxy(new_stack, kind, postgres_server, slots=1) as (stack, proxy):
        stack.jobs.wait(stack.jobs.submit("note"), "completed")
        proxy.deafen()

        def answers() -> bool:
            began = time.monotonic()
            statuses = [stack.jobs.client.get(path).status_code for path in ("/health", "/api/v1/jobs", "/readyz")]
            assert time.monotonic() - began < 3 * ANSWERED_SECONDS
            return statuses == [200, 200, 200]

        wait_until(answers, "the API has connections that work", 40)
        job = stack.jobs.submit("note")
        stack.jobs.wait(job, "completed", timeout=60)
        assert stack.journal.starts(job)


@pytest.mark.slow
@own(PREFORK)
def test_who_is_told_to_end_while_the_database_is_silent_ends_in_time(
    new_stack: NewStack, kind: Kind, postgres_server: PostgresServer
) -> None:
    env = {"JOBS_SHUTDOWN_TIMEOUT_SECONDS": "1"}
    with behind_proxy(new_stack, kind, postgres_server, slots=2, **env) as (stack, proxy):
        busy, (idle,) = stack.worker(), stack.workers[:1]
        job = stack.jobs.submit("hold", name=stack.name())
        stack.journal.wait_start(job)
        if stack.worker_of(job) is not busy:
            busy, idle = idle, busy
        time.sleep(1.5)  # every background duty is at the database by then
        proxy.silence()
        time.sleep(1.5)
        ends_within(idle, 5.0 + BUSY_SECONDS)
        ends_within(busy, 1.0 + 5.0 + BUSY_SECONDS)
        ends_within(stack.process, 5.0 + BUSY_SECONDS)


@pytest.mark.slow
@own(PREFORK)
def test_no_connection_left_is_an_outage_like_any_other(
    new_stack: NewStack, kind: Kind, own_postgres: NewPostgres
) -> None:
    server = own_postgres()
    url = server.new_database(migrate)
    execute(url, "CREATE ROLE service LOGIN", "GRANT ALL ON ALL TABLES IN SCHEMA public TO service")
    execute(url, "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO service")
    env = {"DATABASE_URL": url.replace("jobs@", "service@"), "JOBS_WORKER_TIMEOUT_SECONDS": f"{T:g}"}
    stack = new_stack(kind, slots=2, **env).start()
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.journal.wait_start(job)
    workers = worker_rows(url)
    execute(url, "ALTER ROLE service CONNECTION LIMIT 0")
    execute(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'service'")
    began = time.monotonic()
    answer = stack.jobs.client.get("/api/v1/jobs")
    assert answer.status_code == 503, answer.text
    assert time.monotonic() - began < ANSWERED_SECONDS
    assert not RAW.search(answer.text)
    stack.journal.release(name)
    stack.journal.wait_end(job)
    time.sleep(1.5 * T)  # the outage itself
    execute(url, "ALTER ROLE service CONNECTION LIMIT -1")
    wait_until(lambda: stack.jobs.client.get("/readyz").status_code == 200, "the API is ready again")
    assert stack.jobs.wait(job, "completed")["attempt"] == 1
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert worker_rows(url) == workers


def execute(url: str, *statements: LiteralString) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.slow
@own(PREFORK)
def test_a_hard_time_limit_during_an_outage_is_recorded_with_its_reason(
    new_stack: NewStack, kind: Kind, postgres_server: PostgresServer
) -> None:
    with behind_proxy(new_stack, kind, postgres_server, slots=1) as (stack, proxy):
        module = stack.service.module("limited", LIMITED)
        worker = stack.workers[0]
        ends_within(worker, 10.0)
        stack.service.env["JOBS_IMPORTS"] += f",{module}"
        stack.worker()
        stack.apis.insert(0, stack.service.api())
        job = stack.jobs.submit("limited.too_long")
        wait_until(lambda: stack.jobs.status(job) == "running", "it runs")
        proxy.refuse()
        stack.workers[-1].wait_for_log("Hard time limit", 20)
        time.sleep(3.0)  # its process is gone for longer than two looks at the children
        proxy.accept()
        assert stack.jobs.wait(job, "failed")["error"].startswith("TimeLimitExceeded")
        stack.jobs.wait(stack.jobs.submit("note"), "completed")


LIMITED = """
    import time

    from celery_jobs.tasks import job

    @job(time_limit=3)
    def too_long() -> None:
        time.sleep(60)
"""

TOUCHES = """
    import os

    from sqlalchemy import create_engine, text

    from celery_jobs.tasks import job
    from celery_jobs.records.store import Store
    from celery_jobs.tasks import process

    url = os.environ["DATABASE_URL"]
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        connection.execute(text("SELECT count(*) FROM jobs"))
    # and as our own code does it
    ours = process.current().store
    ours.read(lambda connection: connection.execute(text("SELECT count(*) FROM jobs")).scalar())

    @job
    def counts(number: int) -> int:
        return number
"""


@own(PREFORK)
def test_a_module_that_uses_the_database_at_import_shares_no_connection_with_the_children(
    new_stack: NewStack, kind: Kind, postgres_server: PostgresServer
) -> None:
    stack = new_stack(kind, slots=8)
    module = stack.service.module("touches", TOUCHES)
    stack.service.env["JOBS_IMPORTS"] += f",{module}"
    stack.start()
    jobs = [stack.jobs.submit("touches.counts", number=number) for number in range(80)]
    for number, job in enumerate(jobs):
        stack.jobs.wait(job, "completed")
        assert stack.jobs.result(job)["result"] == number
    for process in (stack.process, *stack.workers):
        assert RAW.search(process.log) is None, process.log_tail()
