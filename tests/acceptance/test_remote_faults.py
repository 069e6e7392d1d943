"""The service fails under remote workers (contract, section 8): nothing is lost, run twice, or judged too early."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.kinds import own
from tests.acceptance.test_database_outage import FAULTS
from tests.support.jobs import good
from tests.support.postgres import PostgresServer
from tests.support.remote import Remote, refused
from tests.support.remote_crew import Crew
from tests.support.service import HttpProcess
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack, migrate
from tests.support.waiting import stays, wait_until

NewStack = Callable[..., Stack]
NewPostgres = Callable[[], PostgresServer]

T = 4.0
INTERVAL_SECONDS = 1.0
LOOK_SECONDS = 0.1  # each look is a request
SWEPT_SECONDS = T + INTERVAL_SECONDS + 5  # a busy machine adds something
JUDGING = {
    "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS": f"{T:g}",
    "ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": f"{INTERVAL_SECONDS:g}",
}
PATIENT = {
    "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS": "60",
    "ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": "1",
    "ZNDRAW_JOBLIB_CLAIM_TIMEOUT_SECONDS": "3",  # an answer to a claim that was lost is made good after this
}


def restarted(stack: Stack, served: HttpProcess) -> HttpProcess:
    """The same process again at the same address."""
    port = int(served.url.rpartition(":")[2])
    if stack.kind.embedded:
        return stack.service.up("--concurrency", str(stack.slots), port=port)
    return stack.service.api(port=port)


def nobody_is_judged_too_early(
    stack: Stack, returning: Remote, silent: Remote, job: str, away: Callable[[], None]
) -> None:
    """Two workers with a running task each; after the pause one comes back, and the other does not."""
    mine, lost = returning.at_state(job, "running"), silent.at_state(job, "running")
    claimed = silent.at_state(job, "claimed")
    for worker in (returning, silent):
        good(worker.beat(), 200)
    away()
    looker = Remote(returning.client)

    def untouched() -> bool:
        looker.sweep()
        return [looker.task(task)["status"] for task in (mine, lost, claimed)] == ["running", "running", "claimed"]

    stays(untouched, "what they hold", T / 2, interval=LOOK_SECONDS)
    good(returning.beat(), 200)

    def swept() -> bool:
        good(returning.beat(), 200)
        return looker.task(lost)["status"] == "failed"

    wait_until(swept, "the worker that stays away is swept", SWEPT_SECONDS, interval=LOOK_SECONDS)
    assert looker.task(claimed)["status"] == "pending"
    assert returning.report(mine, "completed", result="mine")["result"] == "mine"
    refused(silent.patch(lost, "completed"), 409, "invalid-task-transition")


def pair(stack: Stack) -> tuple[Remote, Remote, str]:
    first, job = Remote(stack.apis[0].client).serving()
    second = first.worker()
    second.register()
    return first, second, job


@pytest.mark.slow
@own(EMBEDDED, PREFORK)
def test_a_service_that_crashed_and_came_back_gives_every_worker_a_whole_timeout(
    new_stack: NewStack, kind: Kind
) -> None:
    stack = new_stack(kind, **JUDGING).start(worker=False)
    first, second, job = pair(stack)

    def away() -> None:
        stack.process.kill9()
        time.sleep(1.5 * T)  # the outage itself, not a wait for anything
        restarted(stack, stack.apis[0])

    nobody_is_judged_too_early(stack, first, second, job, away)


@pytest.mark.slow
@own(EMBEDDED, PREFORK)
def test_a_service_that_was_frozen_gives_every_worker_a_whole_timeout(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, **JUDGING).start(worker=False)
    first, second, job = pair(stack)

    def away() -> None:
        stack.process.stop()
        time.sleep(2 * T)  # the pause itself
        stack.process.cont()

    nobody_is_judged_too_early(stack, first, second, job, away)


@pytest.mark.slow
@own(PREFORK)
@pytest.mark.parametrize("fault", ["paused", "stopped", "all_locked"])
def test_a_database_that_was_away_gives_every_worker_a_whole_timeout(
    new_stack: NewStack, kind: Kind, own_postgres: NewPostgres, fault: str
) -> None:
    server = own_postgres()
    stack = new_stack(kind, DATABASE_URL=server.new_database(migrate), **JUDGING).start(worker=False)
    first, second, job = pair(stack)

    def away() -> None:
        with FAULTS[fault](server, stack.database_url):
            time.sleep(2 * T)  # the outage itself
        wait_until(lambda: stack.apis[0].client.get("/readyz").status_code == 200, "the database is back")

    nobody_is_judged_too_early(stack, first, second, job, away)


@own(PREFORK, slow=(EMBEDDED, SQLITE))
@pytest.mark.parametrize(("many", "kills"), [(100, 1), pytest.param(600, 5, marks=pytest.mark.slow)])
def test_a_service_that_crashes_among_claims_and_reports_loses_nothing(
    new_stack: NewStack, kind: Kind, many: int, kills: int
) -> None:
    stack = new_stack(kind, **PATIENT).start(worker=False)
    if not kind.embedded:
        stack.api()
    serving = list(stack.apis)
    with Crew([api.url for api in stack.apis], workers=6) as crew:
        submitting = crew.submit(many)
        for number in range(kills):
            crew.wait_done(many * (number + 1) // (kills + 2))
            place = number % len(serving)
            serving[place].process.kill9()
            serving[place] = restarted(stack, serving[place])
        submitting.result(timeout=60)
        crew.wait_done(many)
        crew.judge()


@own(PREFORK)
@pytest.mark.parametrize(
    "fault", ["crashed", *(pytest.param(name, marks=pytest.mark.slow) for name in FAULTS if name != "crashed")]
)
def test_a_database_that_fails_among_claims_and_reports_loses_nothing(
    new_stack: NewStack, kind: Kind, own_postgres: NewPostgres, fault: str
) -> None:
    server = own_postgres()
    stack = new_stack(kind, DATABASE_URL=server.new_database(migrate), **PATIENT).start(worker=False)
    with Crew([stack.apis[0].url], workers=4) as crew:
        submitting = crew.submit(100)
        crew.wait_done(20)
        with FAULTS[fault](server, stack.database_url):
            time.sleep(1.0)  # the outage itself
        submitting.result(timeout=60)
        crew.wait_done(100)
        crew.judge()
    assert "Traceback" not in stack.process.log


@own(PREFORK)
def test_without_a_database_every_call_is_unavailable_soon(
    new_stack: NewStack, kind: Kind, own_postgres: NewPostgres
) -> None:
    server = own_postgres()
    stack = new_stack(kind, DATABASE_URL=server.new_database(migrate), **PATIENT).start(worker=False)
    worker, job = Remote(stack.apis[0].client).serving()
    task = worker.at_state(job, "running")
    calls = (
        worker.ask,
        lambda: worker.ask(50),
        lambda: worker.post(job, json={"payload": {}}),
        lambda: worker.patch(task, "completed", result=1),
        lambda: worker.look(task),
        lambda: worker.look(task, 50),
        worker.beat,
        worker.leave,
        worker.put,
        lambda: worker.job(job),
        lambda: worker.send("POST", "/workers"),
        lambda: worker.send("GET", "/workers"),
    )
    server.stop()
    with ThreadPoolExecutor(len(calls)) as pool:
        answers = list(pool.map(lambda call: call(), calls))
    bodies = {answer.request.url.path: (answer.status_code, answer.elapsed.total_seconds()) for answer in answers}
    server.start()
    for answer in answers:
        refused(answer, 503, "unavailable")
        assert "retry-after" in answer.headers
        assert answer.elapsed.total_seconds() < 5 + 2, bodies
    wait_until(lambda: worker.look(task).status_code == 200, "the database is back", interval=LOOK_SECONDS)
    assert worker.task(task)["status"] == "running"
    assert worker.report(task, "completed", result=2)["result"] == 2
