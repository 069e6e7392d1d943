"""What the fixture `jobs_service` gives: jobs submitted, waited for and canceled without an event loop."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from ulid import ULID

from celery_jobs.records import queues, reads
from celery_jobs.records.errors import JobNotFound, QueueNotFound
from celery_jobs.records.record import JobRecord, QueueView, StreamRow
from celery_jobs.records.spelling import nearest
from celery_jobs.records.states import TERMINAL, JobStatus
from celery_jobs.tasks.results import value_of
from celery_jobs.tasks.scheduler import CeleryScheduler
from celery_jobs.tasks.surface import AnyId, id_of
from celery_jobs.testing.explain import told
from celery_jobs.testing.history import history_of
from celery_jobs.testing.job import Job

if TYPE_CHECKING:
    from celery_jobs.testing.core import Running

T = TypeVar("T")
_LOOK_EVERY_SECONDS = 1.0  # without any hint
_SOON_SECONDS = 0.02


class JobsService:
    """The whole service in this process, for one test: SQLite file, broker and worker inside.

    Its methods block, from any thread; in an async test too, since jobs do not run on the test's event loop
    (`await asyncio.to_thread(jobs_service.wait_for, job)` lets that loop go on meanwhile).
    """

    def __init__(self, running: Running) -> None:
        self._lent: Running | None = running

    @property
    def scheduler(self) -> CeleryScheduler:
        """The scheduler itself; its methods belong to the service's own event loop, see `run`."""
        return self._running.scheduler

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await it on the service's event loop: `jobs_service.run(jobs_service.scheduler.queues())`."""
        try:
            running = self._running
        except BaseException:
            coroutine.close()
            raise
        return running.loop.run(coroutine)

    def submit(self, target: Any, /, *args: Any, **kwargs: Any) -> Job:
        """Submit what `CeleryScheduler.add_job` takes: a @job, a signature, a name, any callable, a coroutine.

        TypeError, KeyError and ValueError as there. A coroutine must not use what belongs to the test's event loop.
        """
        return self.job(self.run(self.scheduler.add_job(target, *args, **kwargs)))

    def job(self, job_id: AnyId) -> Job:
        """The job with this id, such as one that the code under test has submitted; it need not exist yet."""
        return Job(self, ULID.from_str(id_of(job_id)))

    @property
    def jobs(self) -> list[Job]:
        """Every job of this test in the order of submission, also those that the code under test has submitted."""
        records = self.run(self.scheduler.get_all_records())
        return [Job(self, record.id) for record in reversed(records)]

    def wait_for(self, job: Job, status: str = "completed", timeout: float = 10.0) -> Job:
        """Return the job when it has reached `status`, at once where it already had.

        AssertionError, which shows the job, when it has ended in another way or after `timeout` seconds.
        """
        __tracebackhide__ = True
        wanted = _status(status)
        deadline = time.monotonic() + timeout
        while True:
            seen = self._running.changes.count
            row = self.row(job.id)
            if wanted in history_of(row):
                return job
            if row.status in TERMINAL:
                raise AssertionError(told(row, job.record, None, wanted, None))
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(told(row, job.record, self._queue(row), wanted, timeout))
            self._running.changes.wait(seen, min(left, self._pause(row)))

    def cancel(self, job: Job) -> bool:
        """Ask for cancellation; False when the job has already finished. KeyError."""
        return self.run(self.scheduler.cancel(job.id))

    def delete(self, job: Job) -> None:
        """Cancel a job and remove its record at once. KeyError."""
        self.run(self.scheduler.delete(job.id))

    def set_max_concurrency(self, max_concurrency: int | None, queue: str | None = None) -> None:
        """At most so many jobs of the queue (the default one) at once, until the test ends. ValueError, KeyError."""
        self.run(self.scheduler.set_max_concurrency(max_concurrency, queue))

    def record(self, job_id: ULID) -> JobRecord:
        """All that is known of a job; KeyError."""
        running = self._running
        return running.store.read(reads.record, id_of(job_id), running.scheduler.hooks.record_class)

    def row(self, job_id: ULID) -> StreamRow:
        """A job's record with the stamps of its statuses; KeyError."""
        known = id_of(job_id)
        row = self._running.store.read(reads.stream_rows, [known]).get(known)
        if row is None or row.deleted:
            raise JobNotFound(known)
        return row

    def result(self, job_id: ULID) -> Any:
        """What a job returned; KeyError, RuntimeError if it failed, was canceled or has not ended."""
        return value_of(self._running.store.read(reads.result, id_of(job_id)))

    def end(self) -> None:
        """The test is over."""
        self._lent = None

    def _pause(self, row: StreamRow) -> float:
        """Until the next look; a job whose time has come, as of a retry, starts now and not at dispatch's own look."""
        run_at = row.record.run_at
        if row.status is not JobStatus.pending or run_at is None:
            return _LOOK_EVERY_SECONDS
        seconds = (run_at - datetime.now(UTC)).total_seconds()
        if seconds <= 0:
            self._running.dispatcher.wake()
        return min(max(seconds, _SOON_SECONDS), _LOOK_EVERY_SECONDS)

    def _queue(self, row: StreamRow) -> QueueView | None:
        try:
            return self._running.store.read(queues.view, row.record.queue or "")
        except QueueNotFound:
            return None

    @property
    def _running(self) -> Running:
        if self._lent is None:
            raise RuntimeError("this jobs_service belongs to a test that has ended")
        return self._lent


def _status(word: str) -> JobStatus:
    try:
        return JobStatus(word)
    except ValueError:
        words = [str(status) for status in JobStatus]
        meant = nearest(word, words)
        raise ValueError(f"{word!r} is no status of a job; did you mean {meant}? ({', '.join(words)})") from None
