"""This worker's row and its lease (contract, section 2): renewed by a thread that lives until the process ends.

Celery's own timers stop when a warm shutdown begins, and a worker that finishes its last job is alive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from celery_jobs.records import workers
from celery_jobs.records.store import Store
from celery_jobs.records.workers import WorkerRow
from celery_jobs.tasks.duty import Duty

BEATS_PER_TIMEOUT = 10
END_SECONDS = 1.0
LEASE_SHARE = 0.6  # of the timeout: silence for T/2 is always survived, silence for T never

_log = logging.getLogger("celery_jobs.heartbeat")


class Heartbeat:
    """Registers the worker, renews its lease, and says when it was taken for dead."""

    def __init__(
        self, store: Store, row: WorkerRow, timeout_seconds: float, slots: Callable[[], int], buried: Callable[[], None]
    ) -> None:
        self.row = row
        self._store = store
        self._lease_seconds = timeout_seconds * LEASE_SHARE
        self._slots = slots
        self._buried = buried
        self._registered = False
        self._stopping = False
        self._duty = Duty("heartbeat", self._beat, timeout_seconds / BEATS_PER_TIMEOUT)

    def start(self) -> None:
        """Register now where the database answers, and go on in the background."""
        try:
            self._beat()
        except Exception as error:
            _log.warning("the worker could not be registered yet: %s", error)
        self._duty.start()

    def register_as(self, row: WorkerRow) -> None:
        """The worker does more than before: say so now."""
        self.row = row
        self._registered = False
        self._beat()

    @property
    def duties(self) -> tuple[Duty, ...]:
        """What runs in the background."""
        return (self._duty,)

    def stopping(self) -> None:
        """A warm shutdown has begun; nobody waits until the record says so."""
        self._stopping = True
        self._duty.wake()

    def stop(self, *, leave: bool = True) -> None:
        """The worker has ended: remove its row unless it still holds runs, which the sweeper then closes."""
        self._duty.stop()
        if not leave:  # the database is known not to answer
            return
        try:
            self._store.write_within(END_SECONDS, workers.leave, self.row.incarnation)
        except Exception as error:
            _log.debug("the row is left to the sweeper: %s", error)

    def _beat(self) -> None:
        row = replace(self.row, slots=self._slots())
        if not self._registered:
            self._store.write(workers.register, row, self._lease_seconds, stopping=self._stopping)
            self._registered = True
        elif not self._store.write(
            workers.renew, row.incarnation, self._lease_seconds, row.slots, stopping=self._stopping
        ):
            _log.warning("this worker was taken for dead; it stops the runs that are no longer its own")
            self._buried()
            self._store.write(workers.register, row, self._lease_seconds, stopping=self._stopping)
