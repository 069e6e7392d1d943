"""Dispatch: pending records go to the broker as far as the limits admit (the outbox; contract, section 5).

One coalescing dispatcher per process: submits, ends and limit changes only wake it. It looks without the lock, marks
under the queue's lock, publishes outside of it, and un-marks what the broker did not take.
"""

from __future__ import annotations

import logging
import threading
import time

from celery_jobs.records import admission
from celery_jobs.records.store import Store
from celery_jobs.tasks.duty import Duty
from celery_jobs.tasks.publish import Publisher

LOOK_EVERY_SECONDS = 1.0
_PER_TRANSACTION = 200
_log = logging.getLogger("celery_jobs.dispatch")


class Dispatcher:
    """Hands waiting jobs over to the broker, in the background."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._publisher = Publisher()
        self._publishing = threading.Lock()
        self._named: set[str] = set()
        self._looked_at = 0.0
        self._duty = Duty("dispatch", self._dispatch, LOOK_EVERY_SECONDS)

    def start(self) -> None:
        """Begin to dispatch."""
        self._duty.start()

    def wake(self, queue: str | None = None) -> None:
        """A job was submitted or ended, or a limit changed; in `queue`, where that is known."""
        if queue is not None:
            self._named.add(queue)
        else:
            self._looked_at = 0.0  # look at every queue
        self._duty.wake()

    @property
    def duties(self) -> tuple[Duty, ...]:
        """What runs in the background."""
        return (self._duty,)

    def stop(self) -> None:
        """End; what is pending stays pending."""
        self._duty.stop()
        if self._publishing.acquire(timeout=1.0):  # a silent broker must not hold up the end of the process
            self._publisher.close()
            self._publishing.release()

    def republish(self, job: admission.Outgoing) -> None:
        """Send the message of a job again that seems to be lost; a duplicate is harmless."""
        if self._store.write(admission.republished, job):
            with self._publishing:
                refused = self._publisher.publish([job])
            if refused:  # it waits again, and ordinary dispatch tries every second
                self._store.write(admission.unmark, refused)

    def backlog(self, queue: str) -> int | None:
        """How many messages lie in a queue; None when the broker does not say."""
        with self._publishing:
            return self._publisher.backlog(queue)

    def _dispatch(self) -> None:
        # a submit names its queue, and its job then starts one look earlier
        while self._named:
            self._hand_over_all(self._named.pop())
        if time.monotonic() - self._looked_at >= LOOK_EVERY_SECONDS:
            self._looked_at = time.monotonic()
            for queue in self._store.read(admission.queues_with_work):
                self._hand_over_all(queue)

    def _hand_over_all(self, queue: str) -> None:
        while self._hand_over(queue):
            pass

    def _hand_over(self, queue: str) -> bool:
        """One batch; True when there may be more."""
        batch = self._store.write(admission.admit, queue, _PER_TRANSACTION)
        if not batch:
            return False
        with self._publishing:
            refused = self._publisher.publish(batch)
        if refused:
            # the broker may have taken one of which it could not say so: that message finds the job un-marked and
            # starts nothing, or finds it marked again and the other message is the duplicate
            self._store.write_for(5.0, admission.unmark, refused)
        return not refused and len(batch) == _PER_TRANSACTION
