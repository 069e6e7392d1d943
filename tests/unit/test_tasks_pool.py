"""The thread pool: every piece of work gets a thread while there are free slots."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from typing import Any

import pytest

from celery_jobs.tasks.pool import GrowingThreadPool, _Slots
from tests.support.waiting import wait_until


def test_every_slot_is_used_however_fast_work_comes() -> None:
    for _ in range(50):
        slots, inside, leave = _Slots(4), threading.Semaphore(0), threading.Event()

        def work(inside: threading.Semaphore = inside, leave: threading.Event = leave) -> None:
            inside.release()
            leave.wait(10)

        futures = [slots.submit(work) for _ in range(4)]
        assert all(inside.acquire(timeout=10) for _ in futures)  # all four run at once
        leave.set()
        assert not wait(futures, 10).not_done
        slots.stop(wait=True)


def test_work_that_waits_gets_the_threads_of_a_larger_limit() -> None:
    slots, inside, leave = _Slots(1), threading.Semaphore(0), threading.Event()

    def work() -> None:
        inside.release()
        leave.wait(10)

    futures = [slots.submit(work) for _ in range(3)]
    assert inside.acquire(timeout=10)
    assert not inside.acquire(blocking=False)
    slots.resize(3)
    assert inside.acquire(timeout=10)
    assert inside.acquire(timeout=10)
    leave.set()
    assert not wait(futures, 10).not_done
    slots.stop(wait=True)


def test_stopping_waits_for_what_runs_until_it_is_abandoned() -> None:
    slots, leave = _Slots(1), threading.Event()
    slots.submit(leave.wait, 30)
    stopping = threading.Thread(target=slots.stop, args=(True,))
    stopping.start()
    assert stopping.is_alive()
    slots.abandoned.set()
    wait_until(lambda: not stopping.is_alive(), "stopping has given up on the thread", 10)
    leave.set()


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_a_message_that_cannot_be_run_is_told_of_as_failed(error: BaseException) -> None:
    """Else its slot would be taken for ever."""

    def target() -> None:
        raise error

    told: list[Any] = []
    pool = GrowingThreadPool(1)
    for _ in range(2):
        pool.on_apply(target, callback=told.append).get(10)
    [(failed, info, _), _] = told
    assert failed
    assert type(error).__name__ in str(info.exception)
    pool.on_stop()
