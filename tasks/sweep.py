"""Sweeping: dead workers, lost messages, expired and deleted jobs. Runs in every API and worker process; safe at once.

It judges workers only after a full timeout of gap-free contact with the database, also after its own start: in an
outage nobody could renew a lease, and a process that was paused saw nobody renew one.
"""

from __future__ import annotations

import logging
import time

from celery_jobs.records import admission, cancel, queues, submit, workers
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.store import Store
from celery_jobs.tasks import metrics
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.duty import Duty
from celery_jobs.tasks.hints import Hints

SWEEPS_PER_TIMEOUT = 10
EXPIRE_EVERY_SECONDS = 1.0
TIDY_EVERY_SECONDS = 10.0
TIDY_BATCHES = 40  # of 500 each, so that a flood is tidied away as fast as it came
# a deleted job's own message arrives within this time or never; messages that others published may come later
KEEP_DELETED_SECONDS = 3_600.0
KEEP_DELETED_FOREIGN_SECONDS = 2 * 86_400.0

_log = logging.getLogger("celery_jobs.sweep")


class Sweeper:
    """One per process."""

    def __init__(self, store: Store, dispatcher: Dispatcher, hints: Hints, timeout_seconds: float) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._hints = hints
        self._timeout = timeout_seconds
        self._in_contact_since: float | None = None
        self._last_contact = 0.0
        self._tidied_at = 0.0
        interval = timeout_seconds / SWEEPS_PER_TIMEOUT
        self._duty = Duty("sweep", self._sweep, interval)
        self._expiry = Duty("expire", self._expire, EXPIRE_EVERY_SECONDS)
        # apart, since a silent broker makes it slow, and a slow sweep may not judge
        self._again = Duty("publish-again", self._send_again, interval)

    def start(self) -> None:
        """Begin to sweep."""
        self._duty.start()
        self._expiry.start()
        self._again.start()

    def stop(self) -> None:
        """End after the sweep under way."""
        self._again.stop()
        self._expiry.stop()
        self._duty.stop()

    def may_judge(self) -> bool:
        """True after a full timeout without a gap in the contact with the database."""
        clock = _seconds_since_boot()
        if self._in_contact_since is None or clock - self._last_contact > self._timeout / 4:
            self._in_contact_since = clock
        self._last_contact = clock
        return clock - self._in_contact_since >= self._timeout

    def _sweep(self) -> None:
        try:
            gone = self._store.read(workers.lapsed)
        except DatabaseUnavailable:
            self._in_contact_since = None
            raise
        if self.may_judge():
            self._bury(gone)
        self._tidy()

    def _expire(self) -> None:
        if self._store.read(cancel.any_expired):
            self._hints.changed(*self._store.write(cancel.expire))

    def _tidy(self) -> None:
        """What need not happen at once."""
        if time.monotonic() - self._tidied_at < TIDY_EVERY_SECONDS:
            return
        self._tidied_at = time.monotonic()
        self._store.write(queues.ensure_named)
        for _ in range(TIDY_BATCHES):
            keys = self._store.write(submit.forget_keys)
            rows = self._store.write(cancel.purge_deleted, KEEP_DELETED_SECONDS, KEEP_DELETED_FOREIGN_SECONDS)
            if not keys and not rows:
                return

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


def _seconds_since_boot() -> float:
    """A clock that goes on while the machine sleeps, as leases do: after a night's sleep nobody may judge at once."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
