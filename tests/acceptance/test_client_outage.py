"""Workers and submitters outlive stopped workers, stopped servers and lost answers (contract, section 8; C19)."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from pydantic import BaseModel

from celery_jobs.client import ClaimedTask, InvalidTaskTransition, JobManager, Unreachable
from tests.support.processes import Process, Processes
from tests.support.proxy import Proxy, says
from tests.support.sdk import JOBLIB, SdkWorkers, forget_workers, fresh, workers_seen
from tests.support.sdk_tasks import Double
from tests.support.service import HttpProcess, Service
from tests.support.stack import EMBEDDED, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("client-outage")

TIMEOUT_SECONDS = 3.0
SECONDS = 10  # "in seconds": a deadline with slack
BEAT = ("--heartbeat-interval", "0.5")
SETTINGS = {
    "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS),
    "ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": "0.3",
    "ZNDRAW_JOBLIB_CLAIM_TIMEOUT_SECONDS": "1.5",
}


@pytest.fixture(scope="module")
def served(start_stack: Callable[..., Stack]) -> Stack:
    """A service that all tests of this file share; it may be frozen, and is not stopped."""
    return start_stack(EMBEDDED, **SETTINGS)


@pytest.fixture
def client(served: Stack) -> httpx.Client:
    """A client of the service, which knows no worker."""
    forget_workers(served.apis[0].client)
    return served.apis[0].client


@pytest.fixture
def url(served: Stack) -> str:
    return served.apis[0].url


@pytest.fixture
def sdk(served: Stack, processes: Processes, tmp_path: Path) -> SdkWorkers:
    """Starts workers in a folder of the test's own."""
    return SdkWorkers(processes, tmp_path, served.service.env)


@pytest.fixture
def jobs(url: str) -> Iterator[JobManager]:
    """A submitter that reaches the service directly."""
    with JobManager(url) as jobs:
        yield jobs


# --- a worker that is stopped for too long


def test_a_worker_that_was_stopped_for_too_long_drops_its_task_and_goes_on(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    worker, held = sdk.command(url, *BEAT), sdk.hold()
    (lost,) = workers_seen(client)
    running = jobs.submit(held, room="room_1", job_room="room_1")
    sdk.wait_began(held)
    worker.stop()
    assert running.wait(TIMEOUT_SECONDS + SECONDS).status == "failed"
    wait_until(lambda: not workers_seen(client), "the worker is swept")
    sdk.release(held)
    worker.cont()
    worker.wait_for_log(f"task {running.id} of room_1:analysis:Hold is dropped: 409")
    wait_until(lambda: workers_seen(client), "it registers again")
    (again,) = workers_seen(client)
    assert again != lost
    assert running.refresh().status == "failed"
    assert jobs.submit(Double(number=4), room="room_1").wait(SECONDS).result == 8
    assert "Traceback" not in worker.log


def test_a_late_report_is_refused_and_stays_so(client: httpx.Client, jobs: JobManager, url: str) -> None:
    with JobManager(url) as worker:
        task = claimed(worker)
        worker.start(task)
        wait_until(lambda: jobs.task(task.id).status == "failed", "it is swept", TIMEOUT_SECONDS + SECONDS)
        for _ in range(2):
            with pytest.raises(InvalidTaskTransition):
                worker.complete(task, 1)
            worker.heartbeat()
        assert jobs.task(task.id).status == "failed"
        assert jobs.task(task.id).error is not None
        assert jobs.task(task.id).result is None


def claimed(worker: JobManager) -> ClaimedTask:
    """A task of a fresh class, claimed by the worker, which registered it."""
    made = fresh(Double)
    worker.register(made)
    worker.submit(made(number=3), room="room_1")
    return next(worker.listen())


# --- a server that is stopped


class Restartable:
    """A service at a fixed address that can be stopped, replaced by a counter of connections, and started again."""

    def __init__(self, service: Service) -> None:
        self.service = service
        service.env.update(SETTINGS)
        self.served: HttpProcess = service.up()
        self.port = int(urlsplit(self.served.url).port or 0)
        self.url = self.served.url

    def stop(self) -> None:
        self.served.process.terminate()
        self.served.process.wait()

    def start(self) -> None:
        self.served = self.service.up(port=self.port)

    @contextmanager
    def counting(self) -> Generator[list[float]]:
        """When somebody connects, each is cut at once: down for everybody, and seen by us."""
        times: list[float] = []
        with closing(socket.create_server(("127.0.0.1", self.port), backlog=128)) as listener:
            listener.settimeout(0.1)
            over = threading.Event()

            def count() -> None:
                while not over.is_set():
                    try:
                        connection, _ = listener.accept()
                    except TimeoutError:
                        continue
                    times.append(time.monotonic())
                    connection.close()

            thread = threading.Thread(target=count)
            thread.start()
            try:
                yield times
            finally:
                over.set()
                thread.join()


@pytest.fixture
def restartable(new_service: Callable[..., Service]) -> Restartable:
    """A service of the test's own."""
    return Restartable(new_service(JOBS_IMPORTS="", JOBS_DATA_DIR="first"))


def cpu_seconds(process: Process) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


@pytest.mark.parametrize("down_seconds", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_serving_workers_outlive_a_server_that_is_down(
    restartable: Restartable, processes: Processes, tmp_path: Path, down_seconds: int
) -> None:
    sdk = SdkWorkers(processes, tmp_path, restartable.service.env)
    workers = [sdk.command(restartable.url, *BEAT) for _ in range(3)]
    restartable.stop()
    spent = sum(map(cpu_seconds, workers))
    with restartable.counting() as times:
        time.sleep(down_seconds)  # the outage itself
    spent = sum(map(cpu_seconds, workers)) - spent
    # each beats twice a second, and asks with pauses that grow to 5 s
    assert 3 <= len(times) <= 3 * (2 * down_seconds + 8 + down_seconds / 2), len(times)
    assert spent < 0.1 * 3 * down_seconds, spent
    restartable.start()
    with JobManager(restartable.url) as jobs:
        back = time.monotonic()
        wait_until(lambda: len(workers_seen(restartable.served.client)) == 3, "all are known", SECONDS)
        submitted = [jobs.submit(Double(number=number), room="room_1") for number in range(12)]
        assert [task.wait(SECONDS).result for task in submitted] == [2 * number for number in range(12)]
        assert time.monotonic() - back < SECONDS
    assert sorted(sdk.runs_of_double()) == list(range(12))
    for worker in workers:
        assert worker.running
        worker.wait_for_log("the job service answers again")
        assert "Traceback" not in worker.log


def test_workers_register_again_with_a_server_that_lost_its_database(
    restartable: Restartable, processes: Processes, tmp_path: Path
) -> None:
    sdk = SdkWorkers(processes, tmp_path, restartable.service.env)
    worker = sdk.command(restartable.url, *BEAT)
    (before,) = workers_seen(restartable.served.client)
    restartable.stop()
    restartable.service.env["JOBS_DATA_DIR"] = "second"
    restartable.start()
    both = ["@global:modifiers:Double", "room_1:analysis:Hold"]
    seen = workers_seen
    wait_until(lambda: [*seen(restartable.served.client).values()] == [both], "it registers all again", SECONDS)
    assert before not in seen(restartable.served.client)
    with JobManager(restartable.url) as jobs:
        assert jobs.submit(Double(number=5), room="room_1").wait(SECONDS).result == 10
    assert worker.running


def test_a_task_that_ends_while_the_server_is_down_is_reported_when_it_is_back(
    restartable: Restartable, processes: Processes, tmp_path: Path
) -> None:
    sdk = SdkWorkers(processes, tmp_path, restartable.service.env)
    sdk.command(restartable.url, *BEAT)
    held = sdk.hold()
    with JobManager(restartable.url) as jobs:
        running = jobs.submit(held, room="room_1", job_room="room_1")
        sdk.wait_began(held)
        restartable.stop()
        sdk.release(held)
        restartable.start()
        assert running.wait(SECONDS).result == held.name


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with a result to report"])
def test_ctrl_c_while_the_server_is_down_ends_a_worker_in_seconds(
    restartable: Restartable, processes: Processes, tmp_path: Path, busy: bool
) -> None:
    sdk = SdkWorkers(processes, tmp_path, restartable.service.env)
    worker, held = sdk.command(restartable.url, *BEAT), sdk.hold()
    if busy:
        with JobManager(restartable.url) as jobs:
            jobs.submit(held, room="room_1", job_room="room_1")
            sdk.wait_began(held)
    restartable.stop()
    sdk.release(held)
    worker.wait_for_log("does not answer")
    worker.interrupt()
    assert worker.wait(SECONDS) == 0
    assert "Traceback" not in worker.log


def test_ctrl_c_while_the_server_is_frozen_ends_a_worker_in_seconds(
    restartable: Restartable, processes: Processes, tmp_path: Path
) -> None:
    sdk = SdkWorkers(processes, tmp_path, restartable.service.env)
    worker = sdk.command(restartable.url, *BEAT)
    restartable.served.process.stop()
    worker.interrupt()
    assert worker.wait(SECONDS) == 0


LISTENS = """
import sys
from celery_jobs.client import JobManager
import sdk_tasks

jobs = JobManager(sys.argv[1])
jobs.register(sdk_tasks.Double)
print("taking tasks", flush=True)
with jobs:
    for task in jobs.listen():
        task.run()
"""


def test_ctrl_c_ends_a_loop_of_ones_own_in_seconds_too(
    restartable: Restartable, processes: Processes, tmp_path: Path
) -> None:
    sdk = SdkWorkers(processes, tmp_path, restartable.service.env)
    worker = sdk.script(LISTENS, restartable.url)
    restartable.stop()
    worker.wait_for_log("does not answer")
    worker.interrupt()
    worker.wait(SECONDS)
    assert "KeyboardInterrupt" in worker.log


# --- lost answers


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """Between a worker of the test and the service."""
    with Proxy(int(urlsplit(url).port or 0)).serving() as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy) -> Iterator[JobManager]:
    """A worker and submitter behind the proxy."""
    with JobManager(f"http://127.0.0.1:{proxy.port}") as behind:
        yield behind


class Counted(BaseModel):
    """Counts its runs."""

    def run(self, ran: list[int]) -> int:
        ran.append(1)
        return len(ran)


@pytest.mark.parametrize("status", ["running", "completed"])
def test_a_report_whose_answer_was_lost_counts(
    client: httpx.Client,
    behind: JobManager,
    proxy: Proxy,
    jobs: JobManager,
    status: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, ran = fresh(Counted), list[int]()
    behind.register(made)
    submitted = jobs.submit(made(), room="room_1")
    task = next(behind.listen())
    proxy.lose_answer(says(f'"status":"{status}"'))
    with caplog.at_level(logging.WARNING, "celery_jobs.client"):
        task.run(ran)
    assert proxy.cuts == 1
    assert ran == [1]
    assert (submitted.refresh().status, submitted.result) == ("completed", 1)
    assert "dropped" not in caplog.text


def test_a_failure_whose_answer_was_lost_counts(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    task = claimed(behind)
    proxy.lose_answer(says('"status":"failed"'))
    behind.fail(task, "no")
    assert proxy.cuts == 1
    assert jobs.task(task.id).error == "no"


def test_a_task_that_was_cancelled_while_the_answer_was_lost_is_refused(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    task = claimed(behind)
    behind.start(task)
    proxy.refuse()
    canceller = threading.Timer(0.2, lambda: (jobs.task(task.id).cancel(), proxy.accept()))
    canceller.start()
    with pytest.raises(InvalidTaskTransition):
        behind.complete(task, 1)
    canceller.join()
    assert jobs.task(task.id).status == "cancelled"


def test_a_claim_whose_answer_was_lost_comes_again_and_runs_once(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    made, ran = fresh(Counted), list[int]()
    behind.register(made)
    submitted = jobs.submit(made(), room="room_1")
    proxy.lose_answer(says("/tasks/claim"))
    next(behind.listen()).run(ran)
    assert proxy.cuts == 1
    assert ran == [1]
    assert submitted.refresh().status == "completed"


def test_a_submit_whose_answer_was_lost_gives_one_task(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    made = fresh(Double)
    behind.register(made)
    proxy.lose_answer(says("POST /v1/joblib/rooms/"))
    submitted = behind.submit(made(number=1), room="only_once")
    assert proxy.cuts == 1
    page = client.get(f"{JOBLIB}/rooms/only_once/tasks").json()
    assert [task["id"] for task in page["items"] if task["job_name"].endswith(made.__name__)] == [submitted.id]


def test_a_registration_whose_answer_was_lost_is_repeated(
    client: httpx.Client, behind: JobManager, proxy: Proxy
) -> None:
    proxy.lose_answer(says("PUT /v1/joblib/rooms/"))
    behind.register(made := fresh(Double))
    assert proxy.cuts == 1
    assert workers_seen(client)[behind.worker_id] == [f"@global:modifiers:{made.__name__}"]


def test_a_stream_outlives_cut_connections(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    made, ran = fresh(Counted), list[int]()
    behind.register(made)
    stream = behind.listen()
    thread = threading.Thread(target=lambda: [task.run(ran) for task in stream])
    thread.start()
    try:
        for round_ in range(1, 4):
            proxy.cut()
            submitted = jobs.submit(made(), room="room_1")
            assert submitted.wait(SECONDS).result == round_
    finally:
        stream.stop()
        thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_report_gives_up_after_its_time(
    behind: JobManager, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("celery_jobs.client.retry.HURRIED_PATIENCE_SECONDS", 1.0)
    task = claimed(behind)
    behind._hurry.begin()
    proxy.refuse()
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        behind.start(task)
    with caplog.at_level(logging.WARNING, "celery_jobs.client"):
        task.run()
    assert "is dropped:" in caplog.text
    assert time.monotonic() - begun < SECONDS


def test_a_wait_for_a_task_outlives_an_outage(
    client: httpx.Client, behind: JobManager, proxy: Proxy, jobs: JobManager
) -> None:
    made = fresh(Double)
    jobs.register(made)
    submitted = behind.submit(made(number=8), room="room_1")
    proxy.refuse()
    threading.Timer(1, proxy.accept).start()
    next(jobs.listen()).run()
    assert submitted.wait(SECONDS).result == 16


def test_stop_works_while_the_server_says_nothing(behind: JobManager, proxy: Proxy) -> None:
    behind.register(fresh(Double))
    proxy.silence()
    stream = behind.listen()
    threading.Timer(0.5, stream.stop).start()
    begun = time.monotonic()
    assert list(stream) == []
    assert time.monotonic() - begun < 1.5
    proxy.speak()
