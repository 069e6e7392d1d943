"""The fixture `jobs_service` runs jobs through the real states in this process; each test has a service of its own."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from ulid import ULID

from celery_jobs.records.record import JobRecord
from celery_jobs.tasks import JobCanceled, SyncScheduler, current_job, job
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.scheduler import CeleryScheduler
from celery_jobs.testing import JobsService, running, wait_for
from celery_jobs.testing.core import Core
from tests.support.waiting import wait_until

STARTED = ["pending", "running"]


@job
def add(left: int, right: int) -> int:
    """A plain function."""
    return left + right


@job
async def render(frames: int) -> int:
    for frame in range(frames):
        current_job.progress(frame + 1, frames, "rendering")
        await asyncio.sleep(0.02)
    return frames


@job
def report(frames: int) -> int:
    for frame in range(frames):
        current_job.checkpoint()
        current_job.progress(frame + 1, frames)
        current_job.logger.info("frame %d", frame)
    return frames


@job(bind=True, max_retries=2, default_retry_delay=0.01)
def flaky(self: Any) -> None:
    raise self.retry(exc=OSError("away"))


@job
def broken() -> None:
    current_job.progress(3, 10, "half of it")
    raise ValueError("no frames")


@job
def nested(left: int) -> str:
    with SyncScheduler() as scheduler:
        return str(scheduler.add_job(add, left, 1))


class Labelled(JobRecord):
    label: str = "none"


class Labelling(CeleryScheduler):
    def _make_record(self, job_id: ULID, submitted_at: datetime) -> JobRecord:
        record = super()._make_record(job_id, submitted_at)
        return Labelled.model_validate({**record.model_dump(), "label": "ours"})


async def test_every_kind_of_target_runs(jobs_service: JobsService) -> None:
    async def doubled(number: int) -> int:
        return 2 * number

    targets = [add, add.s(), add.name, lambda left, right: left + right, partial(add.run, 1)]
    for target, args in zip(targets, [(1, 2)] * 4 + [(2,)], strict=True):
        assert jobs_service.wait_for(jobs_service.submit(target, *args)).result == 3
    assert wait_for(jobs_service.submit(doubled, 4)).result == 8
    assert wait_for(jobs_service.submit(doubled(5))).result == 10
    assert len(jobs_service.jobs) == 7


def test_a_job_is_what_its_record_says(jobs_service: JobsService) -> None:
    done = wait_for(jobs_service.submit(render, frames=2), "completed")
    assert (done.status, done.result, done.error, done.traceback) == ("completed", 2, None, None)
    assert done.progress is not None
    assert (done.progress.current, done.progress.total, done.progress.message) == (2, 2, "rendering")
    assert done.record.task == render.name
    assert jobs_service.jobs == [done] == [jobs_service.job(str(done.id))]
    assert repr(done) == f"<Job {done.id} {render.name} completed>"


@pytest.mark.parametrize("turn", range(3))
def test_the_next_test_finds_nothing_of_the_last_one(jobs_service: JobsService, turn: int) -> None:
    assert jobs_service.jobs == []
    (queue,) = [queue for queue in jobs_service.run(jobs_service.scheduler.queues()) if queue.name == "jobs"]
    assert (queue.max_concurrency, queue.paused, queue.running, queue.pending) == (None, False, 0, 0)
    jobs_service.set_max_concurrency(1)
    first, second = jobs_service.submit(render, 1000), jobs_service.submit(add, 1, 2)
    wait_for(first, "running")
    jobs_service.run(jobs_service.scheduler.change_queue("jobs", paused=True))
    for _ in range(100):  # more than the worker takes at once
        render.delay(1000)
    assert second.status == "pending"


def test_history_has_every_status_however_short(jobs_service: JobsService) -> None:
    assert wait_for(jobs_service.submit(add, 1, 2)).history == [*STARTED, "completed"]
    interrupted = wait_for(jobs_service.submit(render, 1000), "running")
    assert jobs_service.cancel(interrupted)
    assert wait_for(interrupted, "canceled").history == [*STARTED, "canceling", "canceled"]
    assert not jobs_service.cancel(wait_for(jobs_service.submit(broken), "failed"))
    again = wait_for(jobs_service.submit(flaky), "failed")
    assert again.history == [*STARTED * 3, "failed"]
    jobs_service.run(jobs_service.scheduler.change_queue("jobs", paused=True))
    waiting = jobs_service.submit(add, 1, 2)
    jobs_service.cancel(waiting)
    assert waiting.history == ["pending", "canceled"]


def test_a_status_that_was_passed_counts_as_reached(jobs_service: JobsService) -> None:
    done = wait_for(jobs_service.submit(add, 1, 2))
    assert wait_for(done, "running", timeout=0) is done


def test_another_end_fails_the_test_at_once_and_shows_the_job(jobs_service: JobsService) -> None:
    failing = jobs_service.submit(broken)
    with pytest.raises(AssertionError) as failed:
        wait_for(failing, "completed", timeout=3600)
    told = str(failed.value).splitlines()
    assert told[0] == f"job {failing.id} ({broken.name}) is failed, not completed"
    assert told[1:4] == [
        "  error: ValueError: no frames",
        "  progress: 3 of 10 half of it",
        "  history: pending -> running -> failed",
    ]
    assert 'raise ValueError("no frames")' in str(failed.value)


def test_a_job_that_is_late_shows_why_it_waits(jobs_service: JobsService) -> None:
    jobs_service.set_max_concurrency(1)
    wait_for(jobs_service.submit(render, 1000), "running")
    late = jobs_service.submit(add, 1, 2)
    with pytest.raises(AssertionError) as failed:
        wait_for(late, timeout=0.05)
    head, _, queue = str(failed.value).splitlines()
    assert head == f"job {late.id} ({add.name}) is pending, not completed, after 0.05 s"
    assert queue == "  queue jobs: max_concurrency 1; 1 running, 0 canceling, 1 pending"
    scheduled = jobs_service.submit(add.signature((1, 2), countdown=3600))
    with pytest.raises(AssertionError, match="it waits for its time: 20"):
        wait_for(scheduled, timeout=0)


def test_a_word_that_is_no_status_is_refused(jobs_service: JobsService) -> None:
    with pytest.raises(ValueError, match="did you mean canceled"):
        wait_for(jobs_service.submit(add, 1, 2), "cancelled")


def test_a_deleted_job_is_a_key_error(jobs_service: JobsService) -> None:
    gone = wait_for(jobs_service.submit(render, 1000), "running")
    jobs_service.delete(gone)
    for look in (lambda: gone.status, lambda: gone.history, lambda: gone.result, lambda: wait_for(gone)):
        with pytest.raises(KeyError):
            look()
    assert repr(gone) == f"<Job {gone.id}>"


def test_jobs_that_the_code_under_test_submits_are_seen(jobs_service: JobsService) -> None:
    outer = wait_for(jobs_service.submit(nested, 1))
    sent = add.delay(2, 3)
    wait_until(lambda: len(jobs_service.jobs) == 3, "the job that was sent has its record")
    assert [wait_for(each).result for each in jobs_service.jobs] == [str(jobs_service.jobs[1].id), 2, 5]
    assert outer == jobs_service.jobs[0]
    assert jobs_service.jobs[2].record.celery_id == sent.id


@pytest.mark.parametrize("number", [1, 2])
def test_a_task_may_be_declared_inside_of_a_test(jobs_service: JobsService, number: int) -> None:
    @job(name="declared-inside", queue="a-queue-of-its-own")
    def inside() -> int:
        return number

    done = wait_for(jobs_service.submit(inside))
    assert (done.result, done.record.queue) == (number, "a-queue-of-its-own")


@pytest.mark.celery_jobs(max_concurrency=1, scheduler=f"{__name__}:Labelling")
class TestSettings:
    def test_a_mark_gives_the_service_other_settings(self, jobs_service: JobsService) -> None:
        wait_for(jobs_service.submit(render, 1000), "running")
        waiting = jobs_service.submit(add, 1, 2)
        assert waiting.status == "pending"
        assert isinstance(waiting.record, Labelled)
        assert waiting.record.label == "ours"

    @pytest.mark.celery_jobs(default_queue="elsewhere", max_concurrency=2)
    def test_the_closest_mark_wins(self, jobs_service: JobsService) -> None:
        done = wait_for(jobs_service.submit(add, 1, 2))
        assert done.record.queue == "elsewhere"
        assert jobs_service.run(jobs_service.scheduler.queue("elsewhere")).max_concurrency == 2
        assert isinstance(jobs_service.scheduler, Labelling)


async def test_an_async_test_waits_in_a_thread(jobs_service: JobsService) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    done = await asyncio.to_thread(wait_for, jobs_service.submit(render, 2))
    ticking.cancel()
    assert (done.result, ticks > 1) == (2, True)


def test_a_coroutine_job_that_waits_for_the_service_is_told_so(jobs_service: JobsService) -> None:
    async def inside() -> None:
        jobs_service.submit(add, 1, 2)

    failed = wait_for(jobs_service.submit(inside), "failed")
    assert failed.error is not None
    assert "use `await jobs_service.scheduler" in failed.error


def test_a_service_is_over_with_its_test(jobs_service: JobsService, request: pytest.FixtureRequest) -> None:
    done = wait_for(jobs_service.submit(add, 1, 2))
    core: Core = request.getfixturevalue("_celery_jobs_core")
    core.take_back()  # as at the end of the test
    for use in (lambda: jobs_service.submit(add, 1, 2), lambda: wait_for(done)):
        with pytest.raises(RuntimeError, match="a test that has ended"):
            use()


def test_a_direct_call_just_calls_the_function() -> None:
    assert add(1, 2) == 3
    with pytest.raises(RuntimeError, match="only inside a running job"):
        report(frames=1)


async def test_a_direct_call_may_be_made_as_if_in_a_job(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), running(report) as direct:
        assert current_job.id == direct.job_id
        assert report(frames=2) == 2
    assert [(each.current, each.total) for each in direct.progress] == [(1, 2), (2, 2)]
    assert caplog.messages == [f"[{direct.job_id}] frame 0", f"[{direct.job_id}] frame 1"]
    with running(render) as direct:
        assert await render(frames=1) == 1
    assert [each.message for each in direct.progress] == ["rendering"]
    with pytest.raises(RuntimeError, match="only inside a running job"):
        current_job.progress(1)


def test_a_direct_call_may_be_canceled_and_is_not_retried() -> None:
    with running(report) as direct:
        direct.cancel()
        with pytest.raises(JobCanceled):
            report(frames=1)
    with running(flaky), pytest.raises(OSError, match="away"):  # as Celery does where it is called directly
        flaky()
    assert app.tasks[flaky.name].request_stack.top is None


def test_threads_may_use_the_service_side_by_side(jobs_service: JobsService) -> None:
    results: list[int] = []

    def use(number: int) -> None:
        results.append(wait_for(jobs_service.submit(add, number, 0)).result)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2, 3]
