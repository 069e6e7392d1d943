"""What the HTTP layer asks for: submits, cancels, queues, and the reads of reading.py (contract, sections 3 to 5).

It writes records and sends hints; running is the workers' business. Every method may be called from one event loop.
`CeleryScheduler` (scheduler.py) is the same for Python callers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace

from celery_jobs.records import cancel, queues, retry
from celery_jobs.records.cancel import CancelAnswer
from celery_jobs.records.errors import ShuttingDown, TaskNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.queues import UNSET, Unset, check_limit
from celery_jobs.records.record import JobRecord, QueueView
from celery_jobs.records.settings import Settings, load_settings
from celery_jobs.records.states import CancelOutcome
from celery_jobs.records.store import AsyncStore
from celery_jobs.records.submit import NewJob, Submitted
from celery_jobs.tasks import call, catalog, configured, metrics
from celery_jobs.tasks.catalog import TaskView
from celery_jobs.tasks.census import Census, Numbers
from celery_jobs.tasks.duties import Attached, Duties, attached, begin
from celery_jobs.tasks.health import Check, Health
from celery_jobs.tasks.hooks import Hooks
from celery_jobs.tasks.job import JobTask
from celery_jobs.tasks.reading import JobReader
from celery_jobs.tasks.submit import NO_OPTIONS, GroupSubmit, SubmitOptions
from celery_jobs.tasks.targets import new_job

DEFAULT_SHUTDOWN_TIMEOUT_SECONDS = 10.0

_log = logging.getLogger("celery_jobs.scheduler")


class JobService(JobReader):
    """Jobs on Celery, recorded in SQL.

    `max_concurrency` limits the default queue, unless JOBS_MAX_CONCURRENCY does; None changes nothing.
    """

    places = 10**18  # in lists: more than a cursor of this service can name

    def __init__(
        self,
        max_concurrency: int | None = None,
        *,
        settings: Settings | None = None,
        shutdown_timeout: float | None = None,
    ) -> None:
        self._settings_given = settings
        self.settings = settings or load_settings()
        self._limit_given = check_limit(max_concurrency)
        self._timeout_given = shutdown_timeout
        self._stopping = False
        self._starting = asyncio.Lock()
        self._duties: Duties | Attached | None = None

    @property
    def shutdown_timeout(self) -> float:
        """Seconds; what a deployment sets wins over what the program was written with."""
        configured = self.settings.shutdown_timeout_seconds
        given = DEFAULT_SHUTDOWN_TIMEOUT_SECONDS if self._timeout_given is None else self._timeout_given
        return given if configured is None else configured

    def serve_in(self, settings: Settings, shutdown_timeout: float) -> None:
        """What its service was built with counts where it was made without; before `start`."""
        self.settings = self._settings_given = self._settings_given or settings
        self._timeout_given = shutdown_timeout if self._timeout_given is None else self._timeout_given

    # --- life

    async def start(self) -> None:
        """Open the database, begin to dispatch and sweep, and run the embedded worker where no broker is set.

        In a process that is a worker or a service already, it shares that one's. SettingsError when it cannot: nothing
        is left half started.
        """
        if self.started:
            return
        shared = attached(self._settings_given)
        if shared is not None:
            self.settings = shared.here.settings
        self._take_hooks(shared)
        self._warn_where_workers_lack_hooks()
        self._duties = shared or await asyncio.to_thread(
            begin,
            self.settings,
            self.settings.max_concurrency or self._limit_given,
            self.shutdown_timeout,
            self.hooks,
            asyncio.get_running_loop(),
        )
        self._async = AsyncStore(self._duties.store)
        self._submits = GroupSubmit(self._async)
        dispatcher = self._duties.dispatcher
        self._health = Health(self._async, self.settings.embedded, lambda: dispatcher.trouble)
        self._census = Census(self._async)

    def _take_hooks(self, shared: Attached | None) -> None:
        """A scheduler without hooks of its own has those of its process, or of JOBS_SCHEDULER, as SyncScheduler has."""
        if self._has_no_hooks():
            self.hooks = configured.hooks(self.settings) if shared is None else shared.here.hooks

    def _has_no_hooks(self) -> bool:
        return self.hooks == Hooks()

    def _warn_where_workers_lack_hooks(self) -> None:
        told, name = self.settings.scheduler or "", type(self).__name__
        if self.hooks.on_result is not None and not self.settings.embedded and told.partition(":")[2] != name:
            _log.warning(
                "%s._on_job_result runs in the workers, which load it by JOBS_SCHEDULER=module:%s; it is not set so",
                name,
                name,
            )

    async def shutdown(self, timeout: float | None = None) -> None:
        """Take no new jobs, let those here finish for `timeout` seconds, cancel the rest, then close the database."""
        self.begin_shutdown()
        duties = self._duties
        if duties is None:
            return
        await asyncio.to_thread(duties.stop, self.shutdown_timeout if timeout is None else timeout)
        if isinstance(duties, Duties):
            duties.here.end_calls()
            call.drop_all()
        self._census.stop()
        await self._async.close()
        await asyncio.to_thread(duties.close)
        self._duties = None

    def begin_shutdown(self) -> None:
        """From now on submits raise ShuttingDown; safe in a signal handler."""
        self._stopping = True

    def hurry(self) -> None:
        """Jobs that end with the service get no more time; safe in a signal handler."""
        if self._duties is not None:
            self._duties.hurry()

    @property
    def started(self) -> bool:
        """Whether it runs now."""
        return self._duties is not None

    @property
    def _running(self) -> Duties | Attached:
        if self._duties is None:
            raise RuntimeError("the scheduler is shut down" if self._stopping else "the scheduler is not started")
        return self._duties

    # --- jobs

    async def submit_json(self, task: str, kwargs_json: bytes, options: SubmitOptions = NO_OPTIONS) -> Submitted:
        """Record a job; it is durable when this returns, and dispatch follows by itself.

        `kwargs_json` is a JSON object. TaskNotFound, ArgumentsInvalid, IdempotencyKeyReused, DatabaseUnavailable,
        ShuttingDown.
        """
        self._refuse_when_stopping()
        declared = self._running.tasks.get(task)
        if declared is None:
            raise TaskNotFound(task)
        return await self._submit(self._new_job(declared, kwargs_json), options)

    async def retry_job(self, job_id: JobId, options: SubmitOptions = NO_OPTIONS) -> Submitted:
        """Record a new job with the task and the arguments of one that has ended; options that are given win over its.

        JobNotFound, JobUnfinished, JobNotOurs, JobNotRepeatable, RemoteJobGone; IdempotencyKeyReused,
        DatabaseUnavailable, ShuttingDown.
        """
        self._refuse_when_stopping()
        return await self._submit(await self._async.read(retry.again, job_id), options)

    async def submit_new(self, job: NewJob, options: SubmitOptions = NO_OPTIONS) -> Submitted:
        """Record a job that is checked already, such as a task for remote workers; errors as of `submit_json`.

        RemoteJobNotFound when its registration was removed meanwhile.
        """
        self._refuse_when_stopping()
        return await self._submit(job, options)

    async def _submit(self, job: NewJob, options: SubmitOptions) -> Submitted:
        job = self.hooks.recorded(options.applied(job, self.settings.idempotency_seconds))
        submitted = await self._submits.submit(job)
        self._submitted(job, submitted)
        return submitted

    def _submitted(self, job: NewJob, submitted: Submitted) -> None:
        """Hints that follow a submit; after the commit."""
        if not submitted.replayed and self._duties is not None:
            if job.registration is None:
                self._running.hints.appeared(submitted.job_id)
                self._running.dispatcher.wake(job.queue)
            else:
                # whoever waits for something to claim, in whatever process, hears it at once
                self.changed([submitted.job_id, job.registration])
            metrics.submitted(job.task if job.registration is None else metrics.REMOTE, job.queue or "")

    def changed(self, ids: Collection[str]) -> None:
        """Jobs with these ids were written by others than this scheduler; after the commit."""
        self._running.hints.changed(*(JobId(each) for each in ids))

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise ShuttingDown

    def _new_job(self, declared: JobTask, kwargs_json: bytes) -> NewJob:
        return new_job(declared, "[]", declared.arguments.check_json(kwargs_json), self.settings.default_queue)

    async def cancel_job(self, job_id: JobId, *, force: bool = False) -> tuple[CancelOutcome, JobRecord]:
        """Ask for cancellation; the answer says whether it is canceled, still ending, or came too late. JobNotFound."""
        answer = await self._ask_to_cancel(job_id, force=force)
        return answer.outcome, answer.record

    async def _ask_to_cancel(self, job_id: JobId, *, force: bool) -> CancelAnswer:
        answer = await self._async.write(cancel.cancel, job_id, self.hooks.record_class, force=force)
        self.asked_to_cancel(answer)
        return answer

    def asked_to_cancel(self, answer: CancelAnswer) -> None:
        """Hints that follow a cancel request; after the commit."""
        job_id = JobId(str(answer.record.id))
        self._running.hints.changed(job_id)
        if answer.outcome is CancelOutcome.requested:
            self._running.nudges.look(answer.record.celery_id or job_id, answer.worker)
        elif answer.outcome is CancelOutcome.canceled:
            self._running.dispatcher.wake()
        if answer.at_once:
            call.drop(job_id)
            metrics.canceled(metrics.AT_ONCE, 0.0)

    async def delete_job(self, job_id: JobId) -> None:
        """Cancel a job and remove its record at once; code that cannot be interrupted runs to its end. JobNotFound."""
        deleted = await self._async.write(cancel.delete_job, job_id)
        self._running.hints.changed(job_id)
        if deleted.executing:
            self._running.nudges.look(deleted.celery_id, deleted.worker)
        if deleted.at_once:
            call.drop(job_id)
            metrics.canceled(metrics.AT_ONCE, 0.0)
        self._running.dispatcher.wake()

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
        self._running.dispatcher.wake()
        if view.max_concurrency is not None:
            self._running.nudges.grow()
        return view

    def new_task(self, name: str, payload_json: bytes, *, room_id: str, job_name: str) -> NewJob:
        """A job of a task that was named by its category, checked; ArgumentsInvalid."""
        job = self._new_job(self._running.tasks[name], payload_json)
        return replace(job, room_id=room_id, job_name=job_name)

    def categorized(self) -> dict[str, TaskView]:
        """The tasks that are global jobs of the second API too, by `category:name`."""
        return catalog.categorized(self._running.tasks, self.settings.default_queue)

    @property
    def store(self) -> AsyncStore:
        """The records, for statements that are nobody else's business."""
        return self._async

    def tasks(self) -> list[TaskView]:
        """The tasks that may be submitted, by name."""
        return catalog.views(self._running.tasks, self.settings.default_queue)

    async def ready(self) -> bool:
        """True when the database answers; nothing else is looked at."""
        return (await self._health.database())[0].ok

    async def numbers(self) -> Numbers | None:
        """The jobs by queue and status, and the live workers; bounded to about a second, None when it cannot tell."""
        return await self._census.look()

    async def health(self) -> dict[str, Check]:
        """The checks database, broker and workers; bounded to about a second, never raises."""
        return await self._health.checks()
