"""Calling a task's function directly, as if in a job: for unit tests that need no service at all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from ulid import ULID

from celery_jobs.records.ids import JobId
from celery_jobs.records.record import Progress
from celery_jobs.tasks import context
from celery_jobs.tasks.active import Run
from celery_jobs.tasks.job import JobTask


@dataclass(eq=False)
class DirectRun(Run):
    """What `current_job` stands for in a direct call, and what the code has told it."""

    progress: list[Progress] = field(default_factory=list[Progress])

    def report(self, current: float | None, total: float | None, message: str | None) -> None:
        """Every report is kept, in order; a real job stores the newest a few times a second."""
        self.progress.append(Progress(current=current, total=total, message=message))

    def cancel(self) -> None:
        """From now on `current_job.cancel_requested` is True, and `checkpoint()` raises JobCanceled."""
        self.stop()


@contextmanager
def running(task: JobTask) -> Generator[DirectRun]:
    """Inside of the block `current_job` is a job of `task`: `with running(render) as job: render(frames=3)`.

    Nothing is recorded and nothing runs elsewhere: the call is the function's own, and raises what it raises.
    """
    run = DirectRun(JobId(str(ULID())), token=uuid4().hex)
    task.push_request(id=run.job_id)
    entered = context.enter(task, run)
    try:
        yield run
    finally:
        context.leave(entered)
        task.pop_request()
