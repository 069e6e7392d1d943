"""Saying that the worker lives, and hearing which of its tasks were cancelled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from celery_jobs.client.errors import ClientError, WorkerNotFound
from celery_jobs.client.task import InHand
from celery_jobs.client.wire import Wire
from celery_jobs.client.worker import Worker

log = logging.getLogger("celery_jobs.client")

DEFAULT_INTERVAL_SECONDS: Final = 10.0  # several within the minute after which the server takes a worker for dead
_END_SECONDS: Final = 3.0


class Heart:
    """Beats once, or again and again in a thread of its own while a task runs."""

    def __init__(self, wire: Wire, worker: Worker, in_hand: InHand) -> None:
        self._wire, self._worker, self._in_hand = wire, worker, in_hand
        self._heard = True  # of the last one

    def beat(self) -> None:
        """One heartbeat; one that cannot be delivered is logged, since the next one makes up for it."""
        try:
            worker = self._worker.identify()
            try:
                self._in_hand.cancelled(self._wire.beat(worker))
            except WorkerNotFound:
                self._worker.renew(worker)
            self._heard = True
        except ClientError as error:
            if not error.transient:
                raise
            # an outage is told once, however many beats are lost in it
            log.log(logging.WARNING if self._heard else logging.DEBUG, "no heartbeat: %s", error)
            self._heard = False

    @contextmanager
    def beating(self, interval_seconds: float) -> Generator[None]:
        """A beat every so many seconds."""
        if not interval_seconds > 0:
            raise ValueError("the interval between two heartbeats must be more than 0 seconds")
        ended = threading.Event()
        thread = threading.Thread(
            target=self._beat_until, args=(ended, interval_seconds), name="celery-jobs-heartbeat", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_END_SECONDS)

    def _beat_until(self, ended: threading.Event, interval_seconds: float) -> None:
        while not ended.wait(interval_seconds):
            try:
                self.beat()
            except Exception:  # the stream meets the same trouble, and raises it where it can be caught
                log.exception("no heartbeat")
