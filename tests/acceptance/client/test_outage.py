"""Workers outlive being stopped and servers that are down (contract, section 8; C19)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from celery_jobs.client import JobManager
from tests.support.processes import Process, Processes
from tests.support.sdk import BEAT, BEAT_SECONDS, SdkWorkers, soon, submit_hold, workers_seen
from tests.support.sdk_tasks import Double
from tests.support.service import HttpProcess, Service
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("client-outage")

TIMEOUT_SECONDS = 3.0
SETTINGS = soon(TIMEOUT_SECONDS)
SECONDS = 10  # "in seconds": a deadline with slack


def test_a_worker_that_was_stopped_for_too_long_drops_its_task_and_goes_on(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    worker, held = sdk.command(url, *BEAT), sdk.hold()
    (lost,) = workers_seen(client)
    running = submit_hold(jobs, held)
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
    # each beats, and asks with pauses that grow to 5 s
    most = 3 * (down_seconds / BEAT_SECONDS + 8 + down_seconds / 2)
    assert 3 <= len(times) <= most, len(times)
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
        running = submit_hold(jobs, held)
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
            submit_hold(jobs, held)
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
