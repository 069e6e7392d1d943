"""`PluggedService`: to HTTP what `JobService` is (tasks/service.py), on top of any scheduler's documented surface."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final

from pydantic_core import from_json

from celery_jobs.api.plugged.listing import PLACES, newest_first, place_of
from celery_jobs.api.plugged.surface import Surface, record_class_of
from celery_jobs.api.plugged.watching import EveryJob, Numbers, WatchedJobs
from celery_jobs.records.changes import Look, Mark
from celery_jobs.records.errors import NotSupported, QueueNotFound, ShuttingDown, TaskNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.queues import UNSET, Unset, check_limit
from celery_jobs.records.record import JobFilter, JobRecord, JobResult, QueueView, StreamRow
from celery_jobs.records.settings import Settings
from celery_jobs.records.states import CancelOutcome, JobStatus
from celery_jobs.records.submit import Submitted
from celery_jobs.tasks import catalog, metrics
from celery_jobs.tasks.catalog import TaskView
from celery_jobs.tasks.celery import import_tasks
from celery_jobs.tasks.health import LOOK_SECONDS, Check
from celery_jobs.tasks.hooks import Hooks
from celery_jobs.tasks.job import JobTask, offered
from celery_jobs.tasks.results import ResultNotStorable, encode_result
from celery_jobs.tasks.submit import NO_OPTIONS, SubmitOptions
from celery_jobs.tasks.surface import Scheduler

_log = logging.getLogger("celery_jobs.plugged")
_BATCH: Final = 100  # of a whole list
_AFTER_TIMEOUT_SECONDS: Final = 4.0
_OPTIONS: Final = {
    "priority": "priority",
    "tags": "tag",
    "run_at": "run_at",
    "expires_in_seconds": "expires_in_seconds",
    "idempotency_key": "Idempotency-Key",
}


class PluggedService:
    """Another implementation of `Scheduler`, as the service's own endpoints know it; for one event loop."""

    places = PLACES

    def __init__(
        self, scheduler: Scheduler, settings: Settings, *, max_concurrency: int | None, shutdown_timeout: float
    ) -> None:
        self.scheduler = scheduler
        self.settings = settings
        configured = settings.shutdown_timeout_seconds
        self.shutdown_timeout = shutdown_timeout if configured is None else configured
        self.hooks = Hooks(record_class=record_class_of(scheduler))
        self._limit = max_concurrency if settings.max_concurrency is None else settings.max_concurrency
        self._surface, numbers = Surface(scheduler), Numbers()
        self._watched = WatchedJobs(self._surface, numbers)
        self._every = EveryJob(self._surface, numbers)
        self._tasks: dict[str, JobTask] = {}
        self._hinted: list[Callable[[set[JobId]], None]] = []
        self._stopping, self._hurried = False, asyncio.Event()

    # --- life

    async def start(self) -> None:
        """Import the tasks and start the scheduler; SettingsError for a module that cannot be imported."""
        import_tasks(self.settings)
        self._tasks = offered()
        try:
            await self.scheduler.start()
            await self._set_limit()
        except BaseException:
            await self.shutdown()  # nothing is left half started
            raise

    async def _set_limit(self) -> None:
        if self._limit is None:
            return
        try:
            await self._surface.limit(self._limit)
        except NotSupported:
            _log.warning("max_concurrency=%d holds only if the scheduler was made with it: it takes none", self._limit)

    async def shutdown(self) -> None:
        """Let the scheduler drain and cancel; one that takes far longer than its time is left behind."""
        self.begin_shutdown()
        ending = asyncio.ensure_future(self.scheduler.shutdown(timeout=self.shutdown_timeout))
        hurried = asyncio.ensure_future(self._hurried.wait())
        patience = self.shutdown_timeout + _AFTER_TIMEOUT_SECONDS
        await asyncio.wait({ending, hurried}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if ending.done():
            ending.result()
            return
        _log.warning("the scheduler has not shut down in time and is left as it is")
        ending.cancel()

    def begin_shutdown(self) -> None:
        """From now on submits raise ShuttingDown."""
        self._stopping = True

    def hurry(self) -> None:
        """The scheduler gets no more time to shut down."""
        self._hurried.set()

    # --- jobs

    async def submit_json(self, task: str, kwargs_json: bytes, options: SubmitOptions = NO_OPTIONS) -> Submitted:
        """Submit what a task runs, with arguments that are checked: `kwargs_json` is a JSON object.

        TaskNotFound, ArgumentsInvalid, ShuttingDown; NotSupported for options, which `add_job` has no word for.
        """
        given = [said for name, said in _OPTIONS.items() if getattr(options, name) is not None]
        if given:
            raise NotSupported(f"Submitting a job with {', '.join(given)}")
        if self._stopping:
            raise ShuttingDown
        declared = self._tasks.get(task)
        if declared is None:
            raise TaskNotFound(task)
        args, kwargs = declared.arguments.load((), from_json(declared.arguments.check_json(kwargs_json)))
        # the function and not the Celery task: only of that can be told whether it is a coroutine function
        job_id = await self._surface.add(declared.code, args, kwargs)
        metrics.submitted(task, declared.queue or self.settings.default_queue)
        self._changed(job_id)
        return Submitted(job_id)

    async def retry_job(self, job_id: JobId, options: SubmitOptions = NO_OPTIONS) -> Submitted:
        """Nobody but the scheduler knows what a job was called with: NotSupported."""
        raise NotSupported("Retrying a job")

    async def record(self, job_id: JobId) -> JobRecord:
        """The record of a job; JobNotFound."""
        return await self._surface.record(job_id)

    async def result(self, job_id: JobId) -> JobResult:
        """The record and the result of a job; JobNotFound. What JSON cannot hold is null, and `error` says so."""
        record = await self._surface.record(job_id)
        if record.status is not JobStatus.completed:
            return JobResult(record, None)
        value = await self._surface.result(job_id)
        try:
            return JobResult(record, encode_result(value, self.settings.max_result_bytes))
        except ResultNotStorable as error:
            return JobResult(record.model_copy(update={"error": f"ResultNotStorable: {error}"}), None)

    async def stream_records(self, chosen: JobFilter, below: int | None = None) -> AsyncIterator[Sequence[JobRecord]]:
        """All records that fit, newest first, from the place `below` on, in batches; one of them without any."""
        records = newest_first(await self._surface.records(), chosen, below)
        for start in range(0, max(1, len(records)), _BATCH):
            yield records[start : start + _BATCH]
            await asyncio.sleep(0)

    async def page(
        self, chosen: JobFilter, limit: int, below: int | None = None
    ) -> tuple[Sequence[JobRecord], int | None]:
        """The newest `limit` records that fit, from the place `below` on; and where the next page begins, if any."""
        records = newest_first(await self._surface.records(), chosen, below)
        page = records[:limit]
        return page, place_of(page[-1]) if len(records) > limit else None

    async def cancel_job(self, job_id: JobId, *, force: bool = False) -> tuple[CancelOutcome, JobRecord]:
        """Ask for cancellation; the record says whether it came too late. JobNotFound, NotSupported for `force`."""
        if force:
            raise NotSupported("Canceling by force")
        asked = await self._surface.cancel(job_id)
        self._changed(job_id)
        record = await self._surface.record(job_id)
        if record.status is JobStatus.canceled:
            return CancelOutcome.canceled, record
        ended = record.status in (JobStatus.completed, JobStatus.failed)
        going_on = not ended and (asked or record.status is JobStatus.canceling)
        return (CancelOutcome.requested if going_on else CancelOutcome.too_late), record

    async def delete_job(self, job_id: JobId) -> None:
        """Cancel a job and remove its record; JobNotFound."""
        await self._surface.delete(job_id)
        self._changed(job_id)

    # --- the one limit, tasks, health

    async def queues(self) -> list[QueueView]:
        """A scheduler has no queues, and does not tell its limit: NotSupported."""
        raise NotSupported("Showing queues")

    async def queue(self, name: str) -> QueueView:
        """As `queues`."""
        raise NotSupported("Showing a queue")

    async def change_queue(
        self, name: str, *, max_concurrency: int | Unset | None = UNSET, paused: bool | Unset = UNSET
    ) -> QueueView:
        """Set the scheduler's limit, which is that of the default queue; QueueNotFound, NotSupported to pause it."""
        if name != self.settings.default_queue:
            raise QueueNotFound(name)
        if isinstance(max_concurrency, Unset) or not isinstance(paused, Unset):
            raise NotSupported("Pausing a queue")
        await self._surface.limit(check_limit(max_concurrency))
        statuses = [record.status for record in await self._surface.records()]
        return QueueView(
            name=name,
            max_concurrency=max_concurrency,
            paused=False,
            pending=statuses.count(JobStatus.pending),
            running=statuses.count(JobStatus.running),
            canceling=statuses.count(JobStatus.canceling),
            workers=0,
        )

    def tasks(self) -> list[TaskView]:
        """The tasks that may be submitted, by name."""
        return catalog.views(self._tasks, self.settings.default_queue)

    async def ready(self) -> bool:
        """There is no database to wait for."""
        return True

    async def health(self) -> Mapping[str, Check]:
        """The check scheduler: whether it answers within a second; never raises."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._surface.answer()
        except Exception as error:
            return {"scheduler": Check(False, f"does not answer: {type(error).__name__}")}
        return {"scheduler": Check(True, "answers")}

    # --- what streams read

    async def rows(self, ids: Collection[JobId]) -> dict[JobId, StreamRow]:
        """The rows of these jobs; unknown ones are absent, deleted ones say so."""
        return await self._watched.rows(ids)

    async def changed_since(self, mark: int | None, ids: Collection[JobId]) -> tuple[list[StreamRow], int]:
        """What changed among `ids` since the mark, and the next mark; without a mark only the present one."""
        return await self._watched.changed_since(mark, ids)

    async def everything_seen(self) -> Mark:
        """The mark of a look at all jobs now."""
        return await self._every.seen()

    async def everything_since(self, mark: Mark, after: tuple[int, int] | None, until: int | None, most: int) -> Look:
        """The rows of all jobs that changed since a look with this mark, in order; `after` and `until` bound them."""
        return await self._every.since(mark, after, until, most)

    def on_hint(self, callback: Callable[[set[JobId]], None]) -> None:
        """Call back with jobs that were changed over HTTP; of all others only a look tells."""
        self._hinted.append(callback)

    def _changed(self, job_id: JobId) -> None:
        for callback in self._hinted:
            callback({job_id})
