"""Jobs in any state, made by the functions that make them in the service."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sqlalchemy import select, update

from celery_jobs.records import admission, cancel, queues, reads, runs, workers
from celery_jobs.records.clock import from_now
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobRecord
from celery_jobs.records.runs import Claim, Ending, Runner
from celery_jobs.records.states import JobStatus
from celery_jobs.records.submit import NewJob, insert_batch
from celery_jobs.records.tables import jobs
from celery_jobs.records.tables import workers as worker_table
from celery_jobs.records.workers import WorkerRow
from tests.records.faces import Face

_numbers = itertools.count(1)


@dataclass
class Made:
    """A job and, when it was started, its claim."""

    id: JobId
    queue: str
    runner: Runner
    claim: Claim | None = None

    @property
    def held(self) -> Claim:
        assert self.claim is not None
        return self.claim


def new_worker(
    face: Face, *names: str, slots: int = 4, lease_seconds: float = 600.0, tasks: Any = ("t",), pool: str = "threads"
) -> Runner:
    """A registered worker of these queues."""
    incarnation = uuid4().hex
    row = WorkerRow(incarnation, f"w-{incarnation[:6]}", "here", 1, pool, slots, names or ("jobs",), tasks)
    face.write(workers.register, row, lease_seconds)
    return Runner(row.name, incarnation, 4242)


def submit(face: Face, **fields: Any) -> JobId:
    """One pending job; its queue exists."""
    fields = {"task": "t", "queue": "jobs", **fields}
    face.write(queues.ensure, [fields["queue"]])
    [answer] = face.write(insert_batch, [NewJob(**fields)])
    return answer.job_id  # type: ignore[union-attr]


def made(face: Face, *, handed_over: bool = True, pool: str = "threads", **fields: Any) -> Made:
    """A pending job, alone in its queue, handed over to the broker; with a worker."""
    queue = f"q{next(_numbers)}"
    runner = new_worker(face, queue, pool=pool)
    job = Made(submit(face, **{"queue": queue, **fields}), queue, runner)
    if handed_over:
        assert [out.id for out in face.write(admission.admit, queue)] == [job.id]
    return job


def claim(face: Face, job: Made, attempt: int = 0) -> Claim | None:
    """One delivery of the job's message."""
    return runs.claim(face.store, job.id, attempt, uuid4().hex, job.runner, coroutine=False)


def started(face: Face, **fields: Any) -> Made:
    """A running job."""
    job = made(face, **fields)
    job.claim = claim(face, job)
    assert job.claim is not None
    return job


def finish(face: Face, job: Made, status: JobStatus = JobStatus.completed, **fields: Any) -> JobStatus | None:
    """The end of its run."""
    ended = runs.finish(face.store, job.held, Ending(status, **fields), 0.0)
    return ended and ended.status


def in_state(face: Face, status: JobStatus, **fields: Any) -> Made:
    """A job in any state, reached as in the service; a pending one is handed over."""
    if status is JobStatus.pending:
        return made(face, **fields)
    job = started(face, **fields)
    if status in (JobStatus.canceling, JobStatus.canceled):
        face.write(cancel.cancel, job.id)
    if status in (JobStatus.completed, JobStatus.failed):
        finish(face, job, status)
    if status is JobStatus.canceled:
        finish(face, job)
    assert record(face, job.id).status is status
    return job


def record(face: Face, job_id: JobId) -> JobRecord:
    return face.read(reads.record, job_id)


def row(face: Face, job_id: JobId) -> Any:
    """All columns, also of a hidden job; None when there is no row."""
    return face.read(lambda connection: connection.execute(select(jobs).where(jobs.c.id == job_id)).first())


def set_columns(face: Face, job_id: JobId, **values: Any) -> None:
    """What no function of the service does, such as making a job old."""
    face.write(lambda connection: connection.execute(update(jobs).where(jobs.c.id == job_id).values(values)))


def lapse(face: Face, runner: Runner) -> None:
    """The worker's lease ends now."""
    statement = update(worker_table).where(worker_table.c.incarnation == runner.incarnation)
    face.write(lambda connection: connection.execute(statement.values(lease_until=from_now(-1))))
