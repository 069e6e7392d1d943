"""Sweeping: dead workers, lost messages, what expired, what is old. In every API and worker process; safe at once.

It judges workers only after a full timeout of gap-free contact with the database, also after its own start: in an
outage nobody could renew a lease, and a process that was paused saw nobody renew one.
"""

from __future__ import annotations

import logging
import time

from celery_jobs.records import admission, cancel, queues, retention, submit, workers
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.ids import JobId
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.tasks import metrics
from celery_jobs.tasks.contact import Contact
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.duty import Duty, stop_all
from celery_jobs.tasks.hints import Hints

SWEEPS_PER_TIMEOUT = 10
EXPIRE_EVERY_SECONDS = 1.0
RETIRE_EVERY_SECONDS = 1.0
TIDY_EVERY_SECONDS = 10.0
# While there is more, a batch follows after this and after so many times what the last one took: a flood goes faster
# than it can come, and others, SQLite's other writers too, get the database for most of the time.
NEXT_BATCH_SECONDS = 0.1
REST_PER_WORK = 4
# streams in other processes learn of a deletion within this time, also after an outage; without the row our own
# messages run nothing, but messages that others published would make a new record
KEEP_DELETED_SECONDS = 600.0
KEEP_DELETED_FOREIGN_SECONDS = 2 * 86_400.0

_log = logging.getLogger("celery_jobs.sweep")


class Sweeper:
    """One per process."""

    def __init__(self, store: Store, dispatcher: Dispatcher, hints: Hints, settings: Settings) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._hints = hints
        self._timeout = settings.worker_timeout_seconds
        self._retention = settings.retention_seconds
        self._contact = Contact(self._timeout / 4)
        interval = self._timeout / SWEEPS_PER_TIMEOUT
        self._duty = Duty("sweep", self._sweep, interval)
        self._expiry = Duty("expire", self._expire, EXPIRE_EVERY_SECONDS)
        # apart, since a silent broker makes it slow, and a slow sweep may not judge
        self._again = Duty("publish-again", self._send_again, interval)
        self._tidying = Duty("tidy", self._tidy, TIDY_EVERY_SECONDS)
        self._retiring = Duty("retire", self._retire, RETIRE_EVERY_SECONDS)
        self._duties = [self._duty, self._expiry, self._again, self._tidying]
        if self._retention is not None:
            self._duties.append(self._retiring)

    def start(self) -> None:
        """Begin to sweep."""
        for duty in self._duties:
            duty.start()

    @property
    def duties(self) -> tuple[Duty, ...]:
        """What runs in the background."""
        return tuple(self._duties)

    def stop(self) -> None:
        """End after what is under way."""
        stop_all(*self.duties)

    def may_judge(self) -> bool:
        """True after a full timeout without a gap in the contact with the database."""
        self._contact.sign()
        return self._contact.seconds >= self._timeout

    def _sweep(self) -> None:
        try:
            gone = self._store.write(workers.lapsed)
        except DatabaseUnavailable:
            self._contact.lost()
            raise
        if self.may_judge():
            self._bury(gone)

    def _expire(self) -> None:
        began, ids = time.monotonic(), list[JobId]()
        if self._store.read(cancel.any_expired):
            ids = self._store.write(cancel.expire)
            self._hints.changed(*ids)
        self._expiry.interval_seconds = _next(began, EXPIRE_EVERY_SECONDS, more=len(ids) >= cancel.EXPIRE_BATCH)

    def _retire(self) -> None:
        """One batch of the records that are older than they are kept."""
        assert self._retention is not None
        began, ids = time.monotonic(), list[JobId]()
        if self._store.read(retention.any_outlived, self._retention):
            ids = self._store.write(retention.retire, self._retention)
            self._hints.changed(*ids)
        self._retiring.interval_seconds = _next(began, RETIRE_EVERY_SECONDS, more=len(ids) >= retention.BATCH)

    def _tidy(self) -> None:
        """What need not happen at once: one batch of what is forgotten."""
        began = time.monotonic()
        if self._tidying.interval_seconds == TIDY_EVERY_SECONDS:
            self._name_queues()
        keys = self._store.write(submit.forget_keys)
        rows = self._store.write(retention.purge_deleted, KEEP_DELETED_SECONDS, KEEP_DELETED_FOREIGN_SECONDS)
        more = max(keys, rows) >= retention.BATCH
        self._tidying.interval_seconds = _next(began, TIDY_EVERY_SECONDS, more=more)

    def _name_queues(self) -> None:
        # the look takes longer the more waits, so it is none of a writer's
        if names := self._store.read(queues.unnamed):
            self._store.write(queues.ensure, names)

    def _bury(self, gone: list[str]) -> None:
        closed = [job_id for incarnation in gone for job_id in self._store.write(workers.bury, incarnation)]
        closed += self._store.write(workers.close_orphans)
        if closed:
            _log.warning("ended %d jobs whose workers are gone", len(closed))
            self._hints.changed(*closed)
            metrics.closed(self._store, closed)
            self._dispatcher.wake()

    def _send_again(self) -> None:
        """Publish again what was handed over and does not start: its message may be lost."""
        silent = self._timeout / 2
        backlogs = {
            queue: self._dispatcher.backlog(queue) for queue in self._store.read(admission.silent_queues, silent)
        }
        empty = [queue for queue, messages in backlogs.items() if messages == 0]
        for job, waited in self._store.read(admission.overdue, silent, empty):
            if backlogs.get(job.queue) is None:
                continue  # the broker does not answer, so nothing can be sent
            old = waited >= 4 * self._timeout or backlogs[job.queue] == 0
            if (old or self._store.read(admission.overtaken, job)) and self._dispatcher.republish(job, silent):
                _log.info("job %s was handed over %.0f s ago and did not start: published again", job.id, waited)


def _next(began: float, every_seconds: float, *, more: bool) -> float:
    """In how many seconds the next batch is due, after one that has just ended."""
    return max(NEXT_BATCH_SECONDS, REST_PER_WORK * (time.monotonic() - began)) if more else every_seconds
