"""`CeleryScheduler`: jobs on Celery for Python callers (contract, section 6); sync.py is the same without a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

from ulid import ULID

from celery_jobs.records.ids import ulid_of
from celery_jobs.records.record import JobFilter, JobRecord
from celery_jobs.records.states import CancelOutcome, JobStatus
from celery_jobs.records.submit import NewJob, Submitted
from celery_jobs.tasks import call, transaction
from celery_jobs.tasks.results import value_of
from celery_jobs.tasks.service import JobService
from celery_jobs.tasks.submit import NO_OPTIONS, SubmitOptions
from celery_jobs.tasks.surface import AnyId, Scheduler, id_of
from celery_jobs.tasks.targets import Call, job_of


class CeleryScheduler(JobService, Scheduler):
    """Jobs on Celery, recorded in SQL; `max_concurrency` limits the default queue, unless JOBS_MAX_CONCURRENCY does.

    Subclass it for `_make_record` and `_on_job_result`. Without a service around it, it starts with its first call, or
    as `async with`; end it with `shutdown`.
    """

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def _ready(self) -> None:
        if self.started:
            return
        async with self._starting:
            if not self.started:
                self._refuse_when_stopping()
                await self.start()

    def _has_no_hooks(self) -> bool:
        return type(self) is CeleryScheduler  # a subclass that overrides none wants none

    # --- hooks, for subclasses

    def _make_record(self, job_id: ULID, submitted_at: datetime) -> JobRecord:
        """The record of a job that is being submitted; override it to return a JobRecord subclass with more fields."""
        return JobRecord(id=job_id, status=JobStatus.pending, submitted_at=submitted_at)

    async def _on_job_result(self, record: JobRecord, result: Any) -> None:
        """Override it to write to the live record of a job whose code has returned; it runs where the job ran.

        What it raises makes the job failed. It may write the fields of a subclass, `artifact_id`, `tags`, `progress`.
        """

    # --- jobs

    async def add_job(self, target: Any, /, *args: Any, **kwargs: Any) -> ULID:
        """Submit a job that calls `target` with these arguments; its id, when its record is on disk.

        `target`: a @job, a signature of one, its name, or a function that workers can import; in the embedded service
        also any callable, coroutine function or awaitable. TypeError for what cannot cross to a worker, KeyError for an
        unknown name, ValueError for arguments that do not fit, RuntimeError after `shutdown`.
        """
        return await self._add(target, args, kwargs, None, NO_OPTIONS)

    async def submit(
        self, target: Any, /, *args: Any, connection: Any = None, options: SubmitOptions = NO_OPTIONS, **kwargs: Any
    ) -> ULID:
        """Like `add_job`, with options, and, where a `connection` is given, inside the caller's transaction on it.

        Then the job exists if and only if that transaction commits. `connection`: SQLAlchemy's AsyncConnection,
        AsyncSession, Connection or Session, to the database of the records. An argument of the task that is called
        `connection` or `options` goes into a signature: `submit(task.s(options=…))`.
        """
        return await self._add(target, args, kwargs, connection, options)

    async def _add(
        self, target: Any, args: Sequence[Any], kwargs: dict[str, Any], connection: Any, options: SubmitOptions
    ) -> ULID:
        await self._ready()
        self._refuse_when_stopping()
        await self.learn()
        job, held = self._job_of(target, args, kwargs)
        options = options.checked(job)
        with call.holding(job.id, held, committed_by_caller=connection is not None):
            if connection is None:
                submitted = await self._submit(job, options)
            else:
                submitted = await self._submit_within(connection, job, options)
        return ulid_of(submitted.job_id)

    async def learn(self) -> None:
        """Take tasks that were declared since the start, where the worker is inside; every submit does."""
        if self.settings.embedded and self._running.behind:
            await asyncio.to_thread(self._running.learn)

    def _job_of(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        settings, tasks = self.settings, self._running.tasks
        queue = settings.default_queue
        return job_of(target, args, kwargs, tasks=tasks, default_queue=queue, embedded=settings.embedded)

    async def _submit_within(self, connection: Any, job: NewJob, options: SubmitOptions) -> Submitted:
        job = self.hooks.recorded(options.applied(job, self.settings.idempotency_seconds))
        try:
            return await self._insert_within(connection, job, anew=False)
        except transaction.Elsewhere:  # or the server was restarted since somebody asked
            return await self._insert_within(connection, job, anew=True)

    async def _insert_within(self, connection: Any, job: NewJob, *, anew: bool) -> Submitted:
        ours = await self._async.read(transaction.place, anew=anew)
        if transaction.is_async(connection):
            return await transaction.insert_async(connection, job, ours, self._submitted, anew=anew)
        return transaction.insert(connection, job, ours, self._submitted, anew=anew)

    async def get_status(self, job_id: AnyId) -> JobStatus:
        """Where the job is now; KeyError."""
        return (await self.get_record(job_id)).status

    async def get_record(self, job_id: AnyId) -> JobRecord:
        """All that is known of the job, as the class that `_make_record` returns; KeyError."""
        await self._ready()
        return await self.record(id_of(job_id))

    async def get_all_records(self) -> list[JobRecord]:
        """Every job, newest first, without tracebacks; a service with many streams them by `stream_records`."""
        await self._ready()
        return [record async for batch in self.stream_records(JobFilter()) for record in batch]

    async def cancel(self, job_id: AnyId, *, force: bool = False) -> bool:
        """Ask for cancellation; False when the job has already finished. KeyError.

        `force` ends the process of a plain function after JOBS_CANCEL_GRACE_SECONDS, where it has one of its own.
        """
        await self._ready()
        answer = await self._ask_to_cancel(id_of(job_id), force=force)
        return answer.outcome is CancelOutcome.requested or answer.at_once

    async def delete(self, job_id: AnyId) -> None:
        """Cancel a job and remove its record at once; code that cannot be interrupted runs to its end. KeyError."""
        await self._ready()
        await self.delete_job(id_of(job_id))

    async def wait(self, job_id: AnyId, timeout: float | None = None) -> None:
        """Return when the job has ended; TimeoutError after `timeout` seconds, KeyError (also once it is deleted).

        RuntimeError when the scheduler is shut down meanwhile. It hears of the end by notification.
        """
        await self._ready()
        known = id_of(job_id)
        ends = self._running.here.ends
        future = ends.wait(known)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(future)
        except TimeoutError:
            raise TimeoutError(f"job {known} has not ended after {timeout} s") from None
        finally:
            ends.leave(known, future)

    async def get_result(self, job_id: AnyId) -> Any:
        """What the job returned, as JSON has it; KeyError, RuntimeError if it failed, was canceled or has not ended."""
        await self._ready()
        return value_of(await self.result(id_of(job_id)))

    async def set_max_concurrency(self, max_concurrency: int | None, queue: str | None = None) -> None:
        """At most so many jobs of the queue (the default one) at once, over all workers; None for no limit.

        It acts at once and never interrupts a running job. ValueError below 1, KeyError for an unknown queue.
        """
        await self._ready()
        await self.change_queue(queue or self.settings.default_queue, max_concurrency=max_concurrency)
