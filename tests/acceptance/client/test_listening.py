"""Waiting for tasks: at once, until told to stop, also for a worker that was forgotten (contract, section 8)."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from celery_jobs.client import ClaimedTask, JobManager, TaskStream
from tests.support.sdk import JOBLIB, Rotate, claimed, fresh, workers_seen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("client-listening")


def test_a_task_is_claimed_at_once_whatever_the_interval(jobs: JobManager) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    submitted: list[float] = []

    def submit() -> None:
        submitted.append(time.monotonic())
        jobs.submit(made(), room="room_1")

    threading.Timer(0.5, submit).start()
    next(jobs.listen(interval=60))
    assert time.monotonic() - submitted[0] < 1


def test_stop_ends_a_wait_and_loses_no_task(jobs: JobManager) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    stream = jobs.listen()
    threading.Timer(0.5, stream.stop).start()
    begun = time.monotonic()
    assert list(stream) == []
    assert time.monotonic() - begun < 1.5
    begun = time.monotonic()
    threading.Timer(0.5, lambda: jobs.submit(made(angle=1), room="room_1")).start()
    next(jobs.listen()).run()  # the request of the stopped stream still waits, and may be the one to get it
    assert time.monotonic() - begun < 2


def test_threads_may_share_a_manager(jobs: JobManager, url: str) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    ran: list[str] = []
    streams = [jobs.listen() for _ in range(4)]

    def work(stream: TaskStream) -> None:
        for task in stream:
            ran.append(task.id)
            task.run()

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    with JobManager(url) as submitter:
        submitted = [submitter.submit(made(angle=number), room="room_1") for number in range(40)]
        assert [task.wait(20).result for task in submitted] == [[number] for number in range(40)]
    for stream in streams:
        stream.stop()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert sorted(ran) == sorted(task.id for task in submitted)


def test_a_worker_that_the_server_forgot_registers_again_and_goes_on(jobs: JobManager, client: httpx.Client) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    lost = jobs.worker_id
    came: list[ClaimedTask] = []
    stream = jobs.listen()
    thread = threading.Thread(target=lambda: came.append(next(stream)))
    thread.start()
    client.delete(f"{JOBLIB}/workers/{lost}").raise_for_status()
    name = next(iter(jobs))
    wait_until(lambda: [name] in workers_seen(client).values(), "it registers again", 30)
    submitted = jobs.submit(made(angle=2), room="room_1")
    thread.join(30)
    came[0].run()
    assert submitted.refresh().result == [2]
    assert jobs.worker_id != lost


def test_closing_gives_back_what_was_claimed(url: str, client: httpx.Client) -> None:
    with JobManager(url) as jobs, JobManager(url) as other:
        task = claimed(jobs, Rotate)
        other.register(jobs[task.job_name])
        jobs.close()
        assert next(other.listen()).id == task.id
