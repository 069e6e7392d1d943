"""Dispatch: pending records go to the broker as far as the limits admit (the outbox; contract, section 5).

One coalescing dispatcher per process: submits, ends and limit changes only wake it. It looks without the lock, marks
under the queue's lock, publishes outside of it, and un-marks what the broker did not take.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from celery_jobs.records import admission
from celery_jobs.records.ids import JobId
from celery_jobs.records.store import Store
from celery_jobs.tasks.duty import Duty
from celery_jobs.tasks.publish import Publisher

LOOK_EVERY_SECONDS = 1.0
_PER_TRANSACTION = 200
# after the broker came back; what two looks in a row find missing is lost
_LOOKS_FOR_LOST_SECONDS = (0.0, 1.0, 2.0, 3.0)
_SETTLED_SECONDS = 0.5  # a message published so long ago is in its queue, in a worker's hands, or lost
_log = logging.getLogger("celery_jobs.dispatch")


class Dispatcher:
    """Hands waiting jobs over to the broker, in the background."""

    def __init__(self, store: Store, every_seconds: float = LOOK_EVERY_SECONDS) -> None:
        self._store = store
        self._publisher = Publisher()
        self._publishing = threading.Lock()
        self._named: set[str] = set()
        self._looked_at = 0.0
        self._looks_for_lost: list[float] = []
        self._suspects: set[JobId] = set()
        self._duty = Duty("dispatch", self._dispatch, every_seconds)

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

    def end(self) -> None:
        """Admit no more, without waiting for what is under way; what is pending stays pending."""
        self._duty.end()

    def close(self) -> None:
        """Let go of the broker; after the duties have stopped."""
        if self._publishing.acquire(timeout=1.0):  # a silent broker must not hold up the end of the process
            self._publisher.close()
            self._publishing.release()

    @property
    def trouble(self) -> str | None:
        """Why the broker takes no messages of this process at the moment; None where it does."""
        return self._publisher.trouble

    def broker_came_back(self) -> None:
        """A connection to the broker is new: what was handed over before may be lost."""
        self._looks_for_lost = [time.monotonic() + seconds for seconds in _LOOKS_FOR_LOST_SECONDS]
        self._duty.wake()

    def republish(self, job: admission.Outgoing, silent_seconds: float) -> bool:
        """Send the message of a job again that seems to be lost; a duplicate is harmless. False where none is due."""
        # one that is refused waits again, and ordinary dispatch tries every second
        return self._store.write(admission.republished, job, silent_seconds) and self._publish([job])

    def backlog(self, queue: str) -> int | None:
        """How many messages lie in a queue; None when the broker does not say."""
        with self._publishing:
            return self._publisher.backlog(queue)

    def _dispatch(self) -> None:
        away = self._publisher.trouble is not None
        if away and not self._answers():
            return
        if not self._hand_over_what_fits(everywhere=away):
            return
        if away:
            if not self._publisher.is_over():
                return
            self.broker_came_back()
        self._look_for_lost()

    def _answers(self) -> bool:
        with self._publishing:
            return self._publisher.answers()

    def _hand_over_what_fits(self, *, everywhere: bool) -> bool:
        """False when the broker refused something."""
        # a submit names its queue, and its job then starts one look earlier
        while self._named:
            if not self._hand_over_all(self._named.pop()):
                return False
        if everywhere or time.monotonic() - self._looked_at >= LOOK_EVERY_SECONDS:
            self._looked_at = time.monotonic()
            return all(self._hand_over_all(queue) for queue in self._store.read(admission.queues_with_work))
        return True

    def _hand_over_all(self, queue: str) -> bool:
        """In batches; False when the broker refused one."""
        while True:
            # while it is not known to take messages, one job finds out
            most = 1 if self._publisher.trouble else _PER_TRANSACTION
            batch = self._store.write(admission.admit, queue, most)
            if batch and not self._publish(batch):
                return False
            if len(batch) < most:
                return True

    def _publish(self, batch: Sequence[admission.Outgoing]) -> bool:
        with self._publishing:
            refused = self._publisher.publish(batch)
        if refused:
            # the broker may have taken one of which it could not say so: that message finds the job un-marked and
            # starts nothing, or finds it marked again and the other message is the duplicate
            self._store.write_for(5.0, admission.unmark, refused)
        return not refused

    def _look_for_lost(self) -> None:
        """Soon after an outage: what has fewer messages than jobs handed over has lost some, which go out again."""
        if not self._looks_for_lost or time.monotonic() < self._looks_for_lost[0]:
            return
        del self._looks_for_lost[0]
        suspects, self._suspects = self._suspects, set()
        for queue, number in self._store.read(admission.handed_over).items():
            messages = self.backlog(queue)
            if messages is None:
                return  # away again
            if messages < number:
                silent = self._store.read(admission.unstarted, queue, _SETTLED_SECONDS)
                self._suspects.update(job.id for job in silent)
                again = [job for job in silent if job.id in suspects and self.republish(job, _SETTLED_SECONDS)]
                if again:
                    _log.warning("published %d jobs again that queue %s has no messages of", len(again), queue)
