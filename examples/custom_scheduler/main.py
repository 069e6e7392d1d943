r"""A service on a scheduler of your own: jobs that live in the memory of one process.

    fastapi dev examples/custom_scheduler/main.py

    JOB_ID=$(curl -s -X POST http://localhost:8000/api/v1/render \
      -H "Content-Type: application/json" -d '{"frames": 20}' | jq -r '.job_id')
    curl -N http://localhost:8000/api/v1/jobs/$JOB_ID/\$stream
    curl http://localhost:8000/api/v1/jobs/$JOB_ID/\$result
    curl -X POST http://localhost:8000/api/v1/jobs/$JOB_ID/\$cancel

Everything that `Scheduler` asks for is here, and nothing else is needed: no Celery worker, no broker, no database.
The service lists, shows, follows, cancels and deletes these jobs as it does those of Celery. They end with the process.
"""

import asyncio
import contextlib
import inspect
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field
from ulid import ULID

from celery_jobs.api import BaseServiceBuilder, JobOptions, JobRecord, JobStatus, Scheduler, ServiceInfo, get_scheduler


@dataclass(eq=False)
class Job:
    """A record, the call that it stands for, and what came of it."""

    record: JobRecord
    call: Callable[[], Any]
    interruptible: bool
    task: "asyncio.Future[Any] | None" = None  # while and after it ran
    result: Any = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryScheduler(Scheduler):
    """Runs coroutines on the event loop and plain functions in threads, at most `max_concurrency` at once."""

    def __init__(self, max_concurrency: int | None = None) -> None:
        self._max_concurrency = max_concurrency
        self._jobs: dict[ULID, Job] = {}  # an unknown id is a KeyError, as callers expect
        self._waiting: list[Job] = []
        self._running: set[Job] = set()  # a deleted job stays here for as long as its code runs
        self._closed = False

    async def add_job(self, target: Any, /, *args: Any, **kwargs: Any) -> ULID:
        if self._closed:
            raise RuntimeError("the scheduler is shut down")
        if not callable(target):
            raise TypeError(f"a job is a function or a coroutine function, not {target!r}")
        name = getattr(target, "__name__", type(target).__name__)
        record = JobRecord(id=ULID(), status=JobStatus.pending, submitted_at=datetime.now(UTC), task=name)
        job = Job(record, partial(target, *args, **kwargs), inspect.iscoroutinefunction(target))
        self._jobs[record.id] = job
        self._waiting.append(job)
        self._admit()
        return record.id

    async def get_status(self, job_id: ULID) -> JobStatus:
        return self._jobs[job_id].record.status

    async def get_record(self, job_id: ULID) -> JobRecord:
        return self._jobs[job_id].record

    async def get_all_records(self) -> list[JobRecord]:
        return [job.record for job in reversed(self._jobs.values())]

    async def cancel(self, job_id: ULID) -> bool:
        return self._cancel(self._jobs[job_id])

    async def delete(self, job_id: ULID) -> None:
        self._cancel(self._jobs.pop(job_id))

    async def wait(self, job_id: ULID, timeout: float | None = None) -> None:
        async with asyncio.timeout(timeout):
            await self._jobs[job_id].ended.wait()

    async def get_result(self, job_id: ULID) -> Any:
        job = self._jobs[job_id]
        if job.record.status is not JobStatus.completed:
            raise RuntimeError(f"job {job_id} is {job.record.status} and has no result")
        return job.result

    async def set_max_concurrency(self, max_concurrency: int | None) -> None:
        if max_concurrency is not None and max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, not {max_concurrency}")
        self._max_concurrency = max_concurrency
        self._admit()

    async def shutdown(self, timeout: float | None = None) -> None:
        self._closed = True
        for job in [*self._waiting]:
            self._cancel(job)
        await self._wait_for(self._running, timeout)
        for job in self._running:
            self._cancel(job)
        # a coroutine stops at its next await; a thread that runs on is left to the end of the process
        await self._wait_for({job for job in self._running if job.interruptible}, 1.0)

    # --- how a job goes through its states

    def _admit(self) -> None:
        """Start what waits for as long as slots are free."""
        while self._waiting and (self._max_concurrency is None or len(self._running) < self._max_concurrency):
            job = self._waiting.pop(0)
            record = job.record
            record.status, record.started_at, record.attempt = JobStatus.running, datetime.now(UTC), 1
            job.task = task = asyncio.ensure_future(job.call() if job.interruptible else in_thread(job.call))
            task.add_done_callback(partial(self._ended, job))
            self._running.add(job)

    def _cancel(self, job: Job) -> bool:
        match job.record.status:
            case JobStatus.pending:
                self._waiting.remove(job)
                self._finish(job, JobStatus.canceled)
            case JobStatus.running | JobStatus.canceling:
                job.record.status = JobStatus.canceling  # until its code has really stopped
                if job.interruptible and job.task is not None:
                    job.task.cancel()
            case _:
                return False
        return True

    def _ended(self, job: Job, task: "asyncio.Future[Any]") -> None:
        """The code of a job has stopped, in whatever way."""
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or job.record.status is JobStatus.canceling:
            self._finish(job, JobStatus.canceled)
        elif error is not None:
            job.record.error = f"{type(error).__name__}: {error}"
            job.record.error_traceback = "".join(traceback.format_exception(error))
            self._finish(job, JobStatus.failed)
        else:
            job.result = task.result()
            self._finish(job, JobStatus.completed)
        self._running.remove(job)
        self._admit()

    def _finish(self, job: Job, status: JobStatus) -> None:
        job.record.status, job.record.finished_at = status, datetime.now(UTC)
        job.ended.set()

    async def _wait_for(self, jobs: set[Job], timeout: float | None) -> None:
        if tasks := [job.task for job in jobs if job.task is not None]:
            await asyncio.wait(tasks, timeout=timeout)
            await asyncio.sleep(0)  # for `_ended`, which the loop calls next


def in_thread(call: Callable[[], Any]) -> "asyncio.Future[Any]":
    """What `call` returns or raises, from a thread that holds up neither the event loop nor the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            tell, outcome = future.set_result, call()
        except BaseException as error:
            tell, outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(tell, outcome)

    threading.Thread(target=run, daemon=True).start()
    return future


# --- the service


class MemoryServiceBuilder(BaseServiceBuilder):
    """Builds services that run on a MemoryScheduler."""

    def _create_scheduler(self, job_options: JobOptions) -> Scheduler:
        return MemoryScheduler(max_concurrency=job_options.max_concurrency)


class RenderRequest(BaseModel):
    frames: int = Field(ge=1, le=1000)


class RenderAccepted(BaseModel):
    job_id: str
    stream_url: str


router = APIRouter(tags=["render"])


@router.post("/api/v1/render", status_code=202)
async def submit_render(
    request: RenderRequest, scheduler: Annotated[Scheduler, Depends(get_scheduler)]
) -> RenderAccepted:
    """Submit a film; the answer says where to follow it."""
    job_id = await scheduler.add_job(render, request.frames)
    return RenderAccepted(job_id=str(job_id), stream_url=f"/api/v1/jobs/{job_id}/$stream")


async def render(frames: int) -> dict[str, int]:
    """Draw one frame after the other."""
    for _ in range(frames):
        await asyncio.sleep(0.1)
    return {"frames": frames}


app = (
    MemoryServiceBuilder(info=ServiceInfo(id="custom-scheduler", display_name="Custom Scheduler"))
    .with_health()
    .with_jobs(max_concurrency=5)
    .include_router(router)
    .build()
)
