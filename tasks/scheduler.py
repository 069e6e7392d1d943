"""The scheduler: what the HTTP layer and Python callers hold (contract, sections 3, 5 and 6).

It writes records and sends hints; running is the workers' business. Every method may be called from one event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from celery_jobs.records import cancel, changes, queues, reads
from celery_jobs.records.errors import ShuttingDown, TaskNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.migrate import check, upgrade
from celery_jobs.records.queues import UNSET, Unset, check_limit
from celery_jobs.records.record import JobFilter, JobRecord, JobResult, QueueView, StreamRow
from celery_jobs.records.settings import Settings, load_settings
from celery_jobs.records.states import CancelMode, CancelOutcome
from celery_jobs.records.store import AsyncStore, Store
from celery_jobs.records.submit import IdempotencyKey, NewJob, Submitted
from celery_jobs.tasks import process
from celery_jobs.tasks.celery import import_tasks, use_embedded_broker
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.embedded import DEFAULT_SLOTS, EmbeddedWorker
from celery_jobs.tasks.folder import FolderLock
from celery_jobs.tasks.health import Check, Health
from celery_jobs.tasks.hints import Hints
from celery_jobs.tasks.job import JobTask, registered
from celery_jobs.tasks.nudge import Nudges
from celery_jobs.tasks.process import Process
from celery_jobs.tasks.submit import GroupSubmit
from celery_jobs.tasks.sweep import Sweeper
from celery_jobs.tasks.worker import served_queues

DEFAULT_SHUTDOWN_TIMEOUT_SECONDS = 10.0
_PAGE = 500


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task that may be submitted."""

    name: str
    queue: str
    schema: dict[str, Any]
    coroutine: bool
    cancel_mode: CancelMode


class CeleryScheduler:
    """Jobs on Celery, recorded in SQL. `max_concurrency` limits the default queue; None changes nothing."""

    def __init__(
        self,
        max_concurrency: int | None = None,
        *,
        settings: Settings | None = None,
        shutdown_timeout: float | None = None,
    ) -> None:
        self.settings = settings or load_settings()
        self._max_concurrency = check_limit(max_concurrency) or self.settings.max_concurrency
        # what a deployment sets wins over what the program was written with
        configured = self.settings.shutdown_timeout_seconds
        default = DEFAULT_SHUTDOWN_TIMEOUT_SECONDS if shutdown_timeout is None else shutdown_timeout
        self.shutdown_timeout = default if configured is None else configured
        self._stopping = False
        self._tasks: dict[str, JobTask] = {}
        self._lock = FolderLock(self.settings.data_dir)
        self._store: Store | None = None
        self._worker: EmbeddedWorker | None = None

    # --- life

    async def start(self) -> None:
        """Open the database, begin to dispatch and sweep, and run the embedded worker where no broker is set.

        SettingsError when it cannot: nothing is left half started.
        """
        await asyncio.to_thread(self._open)
        self._async = AsyncStore(self._opened)
        self._submits = GroupSubmit(self._async)
        self._health = Health(self._async, self.settings.embedded)

    async def shutdown(self, timeout: float | None = None) -> None:
        """Take no new jobs, let those here finish for `timeout` seconds, cancel the rest, then close the database."""
        self.begin_shutdown()
        if self._store is None:
            return
        await asyncio.to_thread(self._close_workers, self.shutdown_timeout if timeout is None else timeout)
        await self._async.close()
        await asyncio.to_thread(self._close_store)

    def begin_shutdown(self) -> None:
        """From now on submits raise ShuttingDown; safe in a signal handler."""
        self._stopping = True

    @property
    def _opened(self) -> Store:
        if self._store is None:
            raise RuntimeError("the scheduler is not started")
        return self._store

    def _open(self) -> None:
        settings = self.settings
        if settings.embedded:
            use_embedded_broker()  # before any task is declared: a task takes its settings then
        import_tasks(settings)
        if settings.embedded:
            self._lock.acquire(self.shutdown_timeout)
        try:
            if settings.embedded:
                upgrade(settings)
            store = Store(settings.database_url)
            check(store)
        except BaseException:
            self._lock.release()
            raise
        self._tasks = registered()
        self._start_duties(store)

    def _start_duties(self, store: Store) -> None:
        settings = self.settings
        here = Process(settings, store, Hints(settings))
        if settings.embedded:
            here.worker = f"embedded@{platform.node()}"
            here.incarnation = uuid4().hex
        process.become(here)
        self._here = here
        self._store = store
        served = served_queues(settings)
        store.write(queues.ensure, served)
        store.write(queues.set_start_limit, settings.default_queue, self._max_concurrency)
        self._dispatcher = Dispatcher(store)
        self._nudges = Nudges(settings.embedded)
        self._sweeper = Sweeper(store, self._dispatcher, here.hints, settings.worker_timeout_seconds)
        if settings.embedded:
            slots = max(settings.concurrency or DEFAULT_SLOTS, self._max_concurrency or 0)
            self._worker = EmbeddedWorker(here, self._dispatcher, served, slots)
            self._worker.start()
        self._dispatcher.start()
        self._nudges.start()
        self._sweeper.start()

    def _close_workers(self, timeout_seconds: float) -> None:
        self._dispatcher.stop()
        if self._worker is not None:
            self._worker.stop(timeout_seconds)
            self._worker = None
        self._nudges.stop()
        self._sweeper.stop()

    def _close_store(self) -> None:
        self._here.hints.close()
        process.become(None)
        self._opened.close()
        self._store = None
        self._lock.release()

    # --- jobs

    async def submit(
        self,
        task: str,
        kwargs_json: bytes,
        *,
        priority: int | None = None,
        tags: Sequence[str] = (),
        submitted_by: str | None = None,
        idempotency_key: str | None = None,
        idempotency_scope: str = "",
        fingerprint: bytes = b"",
    ) -> Submitted:
        """Record a job; it is durable when this returns, and dispatch follows by itself.

        `kwargs_json` is a JSON object. TaskNotFound, ArgumentsInvalid, IdempotencyKeyReused, DatabaseUnavailable,
        ShuttingDown.
        """
        if self._stopping:
            raise ShuttingDown
        declared = self._tasks.get(task)
        if declared is None:
            raise TaskNotFound(task)
        key = None
        if idempotency_key is not None:
            digest = hashlib.sha256(fingerprint).hexdigest()
            key = IdempotencyKey(idempotency_scope, idempotency_key, digest, self.settings.idempotency_seconds)
        job = replace(self._new_job(declared, kwargs_json), tags=tags, submitted_by=submitted_by, idempotency=key)
        submitted = await self._submits.submit(job if priority is None else replace(job, priority=priority))
        if not submitted.replayed:
            self._dispatcher.wake(job.queue)
        return submitted

    def _new_job(self, declared: JobTask, kwargs_json: bytes) -> NewJob:
        return NewJob(
            task=declared.name,
            queue=declared.queue or self.settings.default_queue,
            kwargs=declared.arguments.check_json(kwargs_json),
            priority=declared.submit_priority,
            interruptible=declared.coroutine,
            retry_on_worker_lost=declared.rerun_when_lost,
            max_attempts=declared.max_attempts,
        )

    async def record(self, job_id: JobId) -> JobRecord:
        """The record of a job; JobNotFound."""
        return await self._async.read(reads.record, job_id)

    async def result(self, job_id: JobId) -> JobResult:
        """The record and the result of a job; JobNotFound."""
        return await self._async.read(reads.result, job_id)

    async def stream_records(self, chosen: JobFilter) -> AsyncIterator[Sequence[JobRecord]]:
        """All records that match, newest first, in pages; no connection is held between two pages."""
        below: int | None = None
        while True:
            records, below = await self._async.read(reads.page, chosen, _PAGE, below)
            yield records
            if below is None:
                return

    async def cancel_job(self, job_id: JobId, *, force: bool = False) -> tuple[CancelOutcome, JobRecord]:
        """Ask for cancellation; the answer says whether it is canceled, still ending, or came too late. JobNotFound."""
        answer = await self._async.write(cancel.cancel, job_id, force=force)
        self._here.hints.changed(job_id)
        if answer.outcome is CancelOutcome.requested:
            self._nudges.look(answer.record.celery_id or job_id, answer.worker)
        elif answer.outcome is CancelOutcome.canceled:
            self._dispatcher.wake()
        return answer.outcome, answer.record

    async def delete(self, job_id: JobId) -> None:
        """Cancel a job and remove its record at once; code that cannot be interrupted runs to its end. JobNotFound."""
        deleted = await self._async.write(cancel.delete_job, job_id)
        self._here.hints.changed(job_id)
        if deleted.executing:
            self._nudges.look(job_id, deleted.worker)
        self._dispatcher.wake()

    # --- queues, tasks, health

    async def queues(self) -> list[QueueView]:
        """Every queue, by name."""
        return await self._async.read(queues.views)

    async def queue(self, name: str) -> QueueView:
        """One queue; QueueNotFound."""
        return await self._async.read(queues.view, name)

    async def change_queue(
        self, name: str, *, max_concurrency: int | Unset | None = UNSET, paused: bool | Unset = UNSET
    ) -> QueueView:
        """Set a queue's limit or pause; QueueNotFound, InvalidLimit. Never interrupts a running job."""
        view = await self._async.write(queues.change, name, max_concurrency, paused)
        self._dispatcher.wake()
        if view.max_concurrency is not None:
            self._nudges.grow()
        return view

    def tasks(self) -> list[TaskView]:
        """The tasks that may be submitted, by name."""
        default = self.settings.default_queue
        return [
            TaskView(name, task.queue or default, task.arguments.schema, task.coroutine, task.cancel_mode)
            for name, task in self._tasks.items()
        ]

    async def ready(self) -> bool:
        """True when the database answers; nothing else is looked at."""
        return (await self._health.database())[0].ok

    async def health(self) -> dict[str, Check]:
        """The checks database, broker and workers; bounded to about a second, never raises."""
        return await self._health.checks()

    # --- what streams read

    async def rows(self, ids: Collection[JobId]) -> dict[JobId, StreamRow]:
        """The rows of these jobs; unknown ones are absent, deleted ones say so."""
        return await self._async.read(reads.stream_rows, ids)

    async def changed_since(self, mark: int | None, ids: Collection[JobId]) -> tuple[list[StreamRow], int]:
        """What changed among `ids` since the mark, and the next mark; without a mark only the present one."""
        if mark is None:
            return [], await self._async.read(changes.mark_now)
        return await self._async.read(changes.changed_since, mark, ids)

    def on_hint(self, callback: Callable[[set[JobId]], None]) -> None:
        """Call back with the ids that changed, from any thread; a hint may be lost."""
        self._here.hints.listen(callback)
