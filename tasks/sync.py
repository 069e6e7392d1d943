"""`SyncScheduler`: the scheduler without an event loop, for scripts and inside of tasks (contract, section 6).

It writes records and reads them; whoever serves the database runs the jobs. In a worker it shares that process's
connections, elsewhere it has its own, and hands its jobs to the broker by itself.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Self

from ulid import ULID

from celery_jobs.records import cancel, queues, reads, submit
from celery_jobs.records.ids import ulid_of
from celery_jobs.records.migrate import check, upgrade
from celery_jobs.records.queues import check_limit
from celery_jobs.records.record import JobFilter, JobRecord
from celery_jobs.records.settings import Settings, load_settings
from celery_jobs.records.states import CancelOutcome, JobStatus
from celery_jobs.records.store import Store
from celery_jobs.records.submit import NewJob, Submitted
from celery_jobs.tasks import call, configured, metrics, process, transaction
from celery_jobs.tasks.celery import import_tasks
from celery_jobs.tasks.hints import Hints
from celery_jobs.tasks.hooks import Hooks
from celery_jobs.tasks.job import offered
from celery_jobs.tasks.process import Process
from celery_jobs.tasks.results import value_of
from celery_jobs.tasks.submit import NO_OPTIONS, SubmitOptions
from celery_jobs.tasks.surface import AnyId, id_of
from celery_jobs.tasks.targets import job_of

_PAGE = 1000
_PATIENCE_SECONDS = 5.0  # with a database that is away; a job waits as long as for the record of its own end


class SyncScheduler:
    """The methods of CeleryScheduler for code without an event loop; thread-safe, and a context manager.

    Settings come from the environment unless given. Inside of a job it belongs to the worker's process. Waiting for
    another job inside of one keeps its slot meanwhile: give such jobs a queue of their own.
    """

    def __init__(self, *, settings: Settings | None = None) -> None:
        self._given = settings
        self._own: Process | None = None
        self._end: Callable[[], object] = _nothing
        self._making = threading.Lock()
        assert self._here is not None  # what is wrong with the settings shows now

    @property
    def _here(self) -> Process:
        """The worker's or the service's process where this is one; else one of its own, made anew after a fork."""
        if self._given is None and process.is_known():
            return process.current()
        with self._making:
            if self._own is None or self._own.pid != os.getpid():
                self._own = _own_process(self._given or load_settings())
                self._end = weakref.finalize(self, _close, self._own)  # at the end of the program at the latest
            return self._own

    @property
    def _settings(self) -> Settings:
        return self._here.settings

    @property
    def _store(self) -> Store:
        return self._here.store

    @property
    def _hooks(self) -> Hooks:
        return self._here.hooks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections, but for those of a worker or a service, which are not its own."""
        self._end()

    # --- jobs

    def add_job(self, target: Any, /, *args: Any, **kwargs: Any) -> ULID:
        """Submit a job, as `CeleryScheduler.add_job`; its id, when its record is on disk."""
        return self._add(target, args, kwargs, None, NO_OPTIONS)

    def submit(
        self, target: Any, /, *args: Any, connection: Any = None, options: SubmitOptions = NO_OPTIONS, **kwargs: Any
    ) -> ULID:
        """Like `add_job`, with options, and inside the caller's transaction where a `connection` is given.

        `connection`: SQLAlchemy's Connection or Session to the database of the records; the job exists if and only if
        its transaction commits.
        """
        return self._add(target, args, kwargs, connection, options)

    def _add(
        self, target: Any, args: Sequence[Any], kwargs: dict[str, Any], connection: Any, options: SubmitOptions
    ) -> ULID:
        here = self._settings.embedded and bool(self._here.incarnation)  # the worker is in this very process
        queue = self._settings.default_queue
        job, held = job_of(target, args, kwargs, tasks=offered(), default_queue=queue, embedded=here)
        options = options.checked(job)
        job = self._hooks.recorded(options.applied(job, self._settings.idempotency_seconds))
        with call.holding(job.id, held, committed_by_caller=connection is not None):
            submitted = self._insert(job, connection)
        return ulid_of(submitted.job_id)

    def _insert(self, job: NewJob, connection: Any) -> Submitted:
        if connection is None:
            (outcome,) = self._store.write_for(self._patience, submit.insert_batch, [job])
            if isinstance(outcome, Exception):
                raise outcome
            self._submitted(job, outcome)
            return outcome
        if transaction.is_async(connection):
            raise TypeError("SyncScheduler takes a Connection or a Session; use CeleryScheduler with asynchronous ones")
        try:
            ours = self._store.read(transaction.place)
            return transaction.insert(connection, job, ours, self._submitted)
        except transaction.Elsewhere:  # or the server was restarted since somebody asked
            ours = self._store.read(transaction.place, anew=True)
            return transaction.insert(connection, job, ours, self._submitted, anew=True)

    def _submitted(self, job: NewJob, outcome: Submitted) -> None:
        if not outcome.replayed:
            self._here.hints.appeared(outcome.job_id)
            metrics.submitted(job.task, job.queue or "")
            self._here.follow_up.wake(job.queue)

    def get_status(self, job_id: AnyId) -> JobStatus:
        """Where the job is now; KeyError."""
        return self.get_record(job_id).status

    def get_record(self, job_id: AnyId) -> JobRecord:
        """All that is known of the job; KeyError."""
        return self._store.read_for(self._patience, reads.record, id_of(job_id), self._hooks.record_class)

    def get_all_records(self) -> list[JobRecord]:
        """Every job, newest first, without tracebacks."""
        found: list[JobRecord] = []
        below: int | None = None
        while True:
            page, below = self._store.read_for(
                self._patience, reads.page, JobFilter(), _PAGE, below, self._hooks.record_class
            )
            found += page
            if below is None:
                return found

    def cancel(self, job_id: AnyId, *, force: bool = False) -> bool:
        """Ask for cancellation; False when the job has already finished. KeyError."""
        known = id_of(job_id)
        answer = self._store.write_for(self._patience, cancel.cancel, known, force=force)
        self._here.hints.changed(known)
        if answer.outcome is CancelOutcome.requested:
            self._here.follow_up.look(answer.record.celery_id or known, answer.worker)
        elif answer.at_once:
            self._here.follow_up.wake(answer.record.queue)
            call.drop(known)
        return answer.outcome is CancelOutcome.requested or answer.at_once

    def delete(self, job_id: AnyId) -> None:
        """Cancel a job and remove its record at once. KeyError."""
        known = id_of(job_id)
        deleted = self._store.write_for(self._patience, cancel.delete_job, known)
        self._here.hints.changed(known)
        if deleted.executing:
            self._here.follow_up.look(deleted.celery_id, deleted.worker)
        if deleted.at_once:
            self._here.follow_up.wake(None)
            call.drop(known)

    def wait(self, job_id: AnyId, timeout: float | None = None) -> None:
        """Return when the job has ended; TimeoutError after `timeout` seconds, KeyError (also once it is deleted)."""
        _demand_no_loop()
        known, ends = id_of(job_id), self._here.ends
        future = ends.wait(known)
        try:
            future.result(timeout)
        except FutureTimeout:
            raise TimeoutError(f"job {known} has not ended after {timeout} s") from None
        finally:
            ends.leave(known, future)

    def get_result(self, job_id: AnyId) -> Any:
        """What the job returned, as JSON has it; KeyError, RuntimeError if it failed, was canceled or has not ended."""
        return value_of(self._store.read_for(self._patience, reads.result, id_of(job_id)))

    def set_max_concurrency(self, max_concurrency: int | None, queue: str | None = None) -> None:
        """At most so many jobs of the queue (the default one) at once, over all workers; None for no limit."""
        name = queue or self._settings.default_queue
        if queue is None:
            self._store.write_for(self._patience, queues.ensure, [name])
        self._store.write_for(self._patience, queues.change, name, check_limit(max_concurrency))
        self._here.follow_up.wake(name)
        if max_concurrency is not None:
            self._here.follow_up.grow()

    @property
    def _patience(self) -> float:
        return self._settings.outage_patience_seconds if self._here.incarnation else _PATIENCE_SECONDS


def _own_process(settings: Settings) -> Process:
    import_tasks(settings)
    if settings.embedded:
        upgrade(settings)
    store = Store(settings.database_url)
    check(store)
    return Process(settings, store, Hints(settings), hooks=configured.hooks(settings))


def _close(here: Process) -> None:
    if here.pid != os.getpid():
        return  # its connections are those of the process that was forked
    here.end_calls()
    here.hints.close()
    here.store.close()


def _demand_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "SyncScheduler.wait would hold up the event loop, and perhaps the very job that it waits for; in a coroutine "
        "use `async with CeleryScheduler() as scheduler`"
    )


def _nothing() -> None:
    """Of a worker's or a service's process."""
