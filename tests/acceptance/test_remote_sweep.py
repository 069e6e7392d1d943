"""Remote workers that fall silent (contract, section 8; case C19): what they held is free again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import Jobs, good
from tests.support.remote import Json, Remote, refused, timestamp
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Stack
from tests.support.waiting import stays, wait_until

pytestmark = pytest.mark.xdist_group("remote-sweep")

T = 3.0
INTERVAL_SECONDS = 1.0
LOOK_SECONDS = 0.1  # each look is a request
SWEPT_SECONDS = T + INTERVAL_SECONDS + 4  # a busy machine adds something
SETTINGS = {
    "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS": f"{T:g}",
    "ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": f"{INTERVAL_SECONDS:g}",
    "ZNDRAW_JOBLIB_CLAIM_TIMEOUT_SECONDS": "60",
}


@pytest.fixture(scope="module", params=each(EMBEDDED, PREFORK), ids=str)
def served(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    return start_stack(request.param, worker=False, **SETTINGS)


@pytest.fixture
def serving(served: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(served.apis[0].client).serving()


def swept(worker: Remote) -> None:
    """Until the service does not know this worker any more; asking renews nothing."""

    def gone() -> bool:
        items = worker.page("/workers", limit=1000)["items"]
        return worker.worker_id not in [item["id"] for item in items]

    wait_until(gone, "the silent worker is swept", SWEPT_SECONDS, interval=LOOK_SECONDS)


def test_what_a_silent_worker_held_fails_or_goes_back(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    looker = Remote(worker.client)
    running, claimed = worker.at_state(job, "running"), worker.at_state(job, "claimed")
    last = timestamp(good(worker.beat(), 200).json()["last_heartbeat"])
    wait_until(
        lambda: looker.task(running)["status"] == "failed",
        "the running task fails",
        SWEPT_SECONDS,
        interval=LOOK_SECONDS,
    )
    lost = looker.task(running)
    assert lost["error"].startswith("WorkerLost: ")
    assert timestamp(lost["completed_at"]) - last >= T / 2
    record = Jobs(worker.client).record(running["id"])
    assert (record["status"], record["error"], record["attempt"]) == ("failed", lost["error"], 1)
    wait_until(
        lambda: looker.task(claimed)["status"] == "pending", "the claimed task goes back", 4, interval=LOOK_SECONDS
    )
    heir = worker.worker()
    heir.register()
    assert heir.claim_one()["id"] == claimed["id"]


def test_a_swept_worker_is_nobody_and_its_late_reports_change_nothing(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    running, claimed = worker.at_state(job, "running"), worker.at_state(job, "claimed")
    swept(worker)
    before = [worker.task(task) for task in (running, claimed)]
    assert [task["status"] for task in before] == ["failed", "pending"]
    for _ in range(2):
        refused(worker.patch(running, "completed", result=1), 409, "invalid-task-transition")
        refused(worker.patch(claimed, "running"), 409, "invalid-task-transition")
        refused(worker.beat(), 404, "worker-not-found")
        refused(worker.ask(), 404, "worker-not-found")
        refused(worker.put(), 404, "worker-not-found")
    assert [worker.task(task) for task in (running, claimed)] == before


def test_the_job_of_a_swept_worker_goes_once_nothing_waits_for_it(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    empty = worker.register("Empty")["full_name"]
    task = worker.submit(job)
    swept(worker)
    wait_until(lambda: worker.job(empty).status_code == 404, "the job without tasks goes", 4, interval=LOOK_SECONDS)
    assert good(worker.job(job), 200).json()["workers"] == []
    assert worker.task(task)["status"] == "pending"
    Remote(worker.client).report(task, "cancelled")
    wait_until(
        lambda: worker.job(job).status_code == 404,
        "the job goes with its last task",
        INTERVAL_SECONDS + 4,
        interval=LOOK_SECONDS,
    )


def test_a_worker_that_beats_is_never_swept_however_often_somebody_asks(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    beaten = [time.monotonic()]

    def alive() -> bool:
        Remote(worker.client).sweep()
        if time.monotonic() - beaten[-1] > T / 3:
            good(worker.beat(), 200)
            beaten.append(time.monotonic())
        return worker.task(task)["status"] == "running"

    stays(alive, "the task of a living worker", 2 * T, interval=LOOK_SECONDS)
    assert worker.report(task, "completed")["status"] == "completed"


def test_a_claim_that_waits_keeps_its_worker_alive(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    assert worker.claim(wait=2 * T) is None
    assert worker.task(task)["status"] == "running"
    good(worker.beat(), 200)


def test_the_worker_hears_of_a_cancelled_task_for_one_timeout(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.at_state(job, "running")
    Remote(worker.client).report(task, "cancelled")
    began = time.monotonic()
    assert worker.told_to_cancel() == [task["id"]]
    wait_until(lambda: worker.told_to_cancel() == [], "it is told no more", SWEPT_SECONDS, interval=LOOK_SECONDS)
    assert time.monotonic() - began > T / 2


@pytest.fixture(scope="module", params=each(PREFORK, SQLITE), ids=str)
def twins(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    """Two API processes on one database."""
    return start_stack(request.param, worker=False, apis=2, **SETTINGS)


def test_two_processes_that_sweep_at_once_end_each_task_once(twins: Stack) -> None:
    asking = [Remote(api.client) for api in twins.apis]
    first, job = asking[0].serving()
    silent = [first, *(first.worker() for _ in range(4))]
    held: list[tuple[Json, Json]] = []
    for worker in silent:
        worker.register()
        held.append((worker.at_state(job, "running"), worker.at_state(job, "claimed")))
    heir = first.worker()
    heir.register()

    def over() -> bool:
        heir.beat()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Remote.sweep, asking))
        return all(first.task(running)["status"] == "failed" for running, _ in held)

    wait_until(over, "all silent workers are swept", SWEPT_SECONDS, interval=LOOK_SECONDS)
    ended = [first.task(running) for running, _ in held]
    assert all(task["error"].startswith("WorkerLost: ") for task in ended)
    assert [Jobs(first.client).record(task["id"])["attempt"] for task in ended] == [1] * len(held)
    got = [heir.claim_one()["id"] for _ in held]
    assert got == [claimed["id"] for _, claimed in held]
    assert heir.claim() is None
    for remote in asking:
        remote.sweep()
    assert [first.task(running) for running, _ in held] == ended
    for api in twins.apis:
        assert "Traceback" not in api.process.log


def test_a_worker_is_as_alive_as_what_any_process_hears_of_it(twins: Stack) -> None:
    worker, job = Remote(twins.apis[0].client).serving()
    task = worker.at_state(job, "running")
    elsewhere = worker.at(twins.apis[1].client)

    def alive() -> bool:
        good(elsewhere.beat(), 200)
        return worker.task(task)["status"] == "running"

    stays(alive, "the task of a worker that beats at the other process", 1.5 * T, interval=T / 6)


@pytest.mark.slow
def test_a_celery_worker_that_counts_as_dead_sooner_changes_nothing_for_remote_ones(
    start_stack: Callable[..., Stack],
) -> None:
    worker, job = Remote(start_stack(PREFORK, JOBS_WORKER_TIMEOUT_SECONDS="1").apis[0].client).serving()
    tasks = [worker.at_state(job, "running"), worker.at_state(job, "claimed"), worker.submit(job)]

    def untouched() -> bool:
        return [worker.task(task)["status"] for task in tasks] == ["running", "claimed", "pending"]

    stays(untouched, "the tasks of a remote worker that is silent", 6.0, interval=LOOK_SECONDS)


@pytest.fixture(scope="module")
def lazy(start_stack: Callable[..., Stack]) -> Stack:
    """Where no timer comes round in time."""
    return start_stack(EMBEDDED, worker=False, **SETTINGS | {"ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": "3600"})


def test_a_sweep_on_request_does_what_the_timer_does_at_most_once_a_second(lazy: Stack) -> None:
    worker, job = Remote(lazy.apis[0].client).serving()
    anybody = Remote(lazy.apis[0].client)
    running, claimed = worker.at_state(job, "running"), worker.at_state(job, "claimed")
    began, answers = time.monotonic(), list[bool]()

    def over() -> bool:
        answers.append(anybody.sweep())
        return anybody.task(running)["status"] == "failed"

    wait_until(over, "the silent worker is swept", SWEPT_SECONDS, interval=LOOK_SECONDS)
    assert 1 <= answers.count(True) <= time.monotonic() - began + 1
    assert False in answers
    assert anybody.task(claimed)["status"] == "pending"
    assert anybody.task(running)["error"].startswith("WorkerLost: ")
