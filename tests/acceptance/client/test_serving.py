"""Workers that serve: signals, heartbeats, handlers, cancelling (contract, section 8)."""

from __future__ import annotations

import os
import signal
import threading
import time

import httpx
import pytest
from pydantic import BaseModel

from celery_jobs.client import ClaimedTask, JobManager
from tests.support.sdk import BEAT, SdkWorkers, fresh, soon, submit_hold, workers_seen
from tests.support.sdk_tasks import Double
from tests.support.waiting import stays, wait_until

pytestmark = pytest.mark.xdist_group("client-serving")

TIMEOUT_SECONDS = 2.0
SETTINGS = soon(TIMEOUT_SECONDS)
SECONDS = 5  # "in seconds": a deadline with slack


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_worker_ends_at_once(sdk: SdkWorkers, url: str, client: httpx.Client, number: signal.Signals) -> None:
    worker = sdk.command(url)
    told = time.monotonic()
    worker.send(number)
    assert worker.wait(SECONDS) == 0
    assert time.monotonic() - told < 2
    assert workers_seen(client) == {}


def test_the_first_signal_lets_the_running_task_end(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    worker, held, later = sdk.command(url, *BEAT), sdk.hold(), sdk.hold()
    running = submit_hold(jobs, held)
    sdk.wait_began(held)
    waiting = submit_hold(jobs, later)
    worker.interrupt()
    worker.interrupt()  # a moment later: from the terminal and from a parent process, and one wish
    worker.wait_for_log("a second signal ends it at once")
    stays(lambda: running.refresh().status == "running", "the task runs on", 1.5)
    sdk.release(held)
    assert worker.wait(SECONDS) == 0
    assert running.refresh().result == held.name
    assert waiting.refresh().status == "pending"
    assert workers_seen(client) == {}
    waiting.cancel()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once_and_fails_the_task(
    sdk: SdkWorkers, url: str, jobs: JobManager, client: httpx.Client, number: signal.Signals, code: int
) -> None:
    worker, held = sdk.command(url, *BEAT), sdk.hold()
    running = submit_hold(jobs, held)
    sdk.wait_began(held)
    worker.send(number)
    time.sleep(1.1)  # signals within a second are one wish
    worker.send(number)
    assert worker.wait(SECONDS) == code
    assert running.refresh().status == "failed"
    assert running.error is not None
    assert "the worker ended while the task ran" in running.error
    assert workers_seen(client) == {}


def test_a_task_may_run_for_longer_than_the_server_waits_for_a_sign_of_life(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    sdk.command(url, *BEAT)
    held = sdk.hold()
    running = submit_hold(jobs, held)
    sdk.wait_began(held)
    (before,) = workers_seen(client)
    stays(lambda: running.refresh().status == "running", "the task runs", TIMEOUT_SECONDS * 2)
    sdk.release(held)
    assert running.wait(10).status == "completed"
    assert set(workers_seen(client)) == {before}


def test_a_worker_that_waits_for_long_stays_known(sdk: SdkWorkers, url: str, client: httpx.Client) -> None:
    sdk.command(url, "--heartbeat-interval", "1000")
    (before,) = workers_seen(client)
    stays(lambda: set(workers_seen(client)) == {before}, "the worker is known", TIMEOUT_SECONDS * 2)


LISTENS = """
import sys
from pydantic import BaseModel
from celery_jobs.client import JobManager

jobs = JobManager(sys.argv[1])

@jobs.register
class Silent(BaseModel):
    pass

print("taking tasks", flush=True)
for task in jobs.listen():
    jobs.start(task)
    while True:
        pass
"""


def test_a_worker_without_heartbeats_loses_its_task(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    sdk.script(LISTENS, url)
    silent = type("Silent", (BaseModel,), {"__module__": __name__})
    task = jobs.submit(silent(), room="room_1").wait(TIMEOUT_SECONDS + 10)
    assert task.status == "failed"
    assert workers_seen(client) == {}


def test_a_handler_hears_of_a_cancel_and_the_worker_goes_on(jobs: JobManager, url: str) -> None:
    made = fresh(BaseModel)
    seen: list[tuple[str, bool]] = []

    def handle(task: ClaimedTask) -> None:
        worker.start(task)
        if task.id == first.id:
            first.cancel()
            wait_until(lambda: task.cancel_requested, "the heartbeat tells")
        seen.append((task.id, task.cancel_requested))
        worker.complete(task, "done")  # refused for the first, which raises

    with JobManager(url) as worker:
        worker.register(made)
        first, second = jobs.submit(made(), room="room_1"), jobs.submit(made(), room="room_1")
        thread = threading.Thread(target=lambda: worker.serve(handle, heartbeat_interval=0.2))
        thread.start()
        assert second.wait(20).result == "done"
        worker.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert seen == [(first.id, True), (second.id, False)]
    assert first.refresh().status == "cancelled"


def test_what_a_handler_raises_fails_its_task_and_nothing_else(
    jobs: JobManager, url: str, client: httpx.Client
) -> None:
    made = fresh(BaseModel)

    def handle(task: ClaimedTask) -> None:
        if task.id == first.id:
            raise RuntimeError("no")
        worker.complete(task)

    with JobManager(url) as worker:
        worker.register(made)
        first, second = jobs.submit(made(), room="room_1"), jobs.submit(made(), room="room_1")
        thread = threading.Thread(target=lambda: worker.serve(handle))
        thread.start()
        assert second.wait(20).status == "completed"
        assert first.refresh().error == "RuntimeError: no"
        worker.close()
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert workers_seen(client) == {}


class Slow(BaseModel):
    number: int

    def run(self) -> int:
        time.sleep(0.1)
        return self.number


def test_threads_may_serve_as_one_worker(jobs: JobManager, url: str, client: httpx.Client) -> None:
    made = fresh(Slow)
    with JobManager(url) as worker:
        worker.register(made)
        threads = [threading.Thread(target=worker.serve) for _ in range(3)]
        for thread in threads:
            thread.start()
        submitted = [jobs.submit(made(number=number), room="room_1") for number in range(9)]
        assert [task.wait(20).result for task in submitted] == list(range(9))
        assert list(workers_seen(client)) == [worker.worker_id]
        worker.stop()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        assert workers_seen(client) == {}


def test_serve_in_the_main_thread_gives_signals_back(url: str) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with JobManager(url) as worker:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        worker.serve()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        made = fresh(Double)  # the manager can be used on
        worker.register(made)
        threading.Timer(0.5, worker.stop).start()
        worker.serve()


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_a_heartbeat_interval_that_is_none_is_refused(url: str, interval: float) -> None:
    with JobManager(url) as worker, pytest.raises(ValueError, match="heartbeats"):
        worker.serve(heartbeat_interval=interval)
