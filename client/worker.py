"""The worker that a JobManager is on the server: an id of its own, and the classes registered for it."""

from __future__ import annotations

import logging
import threading
from typing import Final

from pydantic import BaseModel

from celery_jobs.client.errors import ClientError, WorkerNotFound
from celery_jobs.client.task import InHand
from celery_jobs.client.wire import JobOffer, Wire

log = logging.getLogger("celery_jobs.client")

LEAVE_TIMEOUT_SECONDS: Final = 3.0


class Worker:
    """Takes an id when one is first needed, and another one, with everything registered again, when it is lost."""

    def __init__(self, wire: Wire, in_hand: InHand) -> None:
        self.classes: dict[str, type[BaseModel]] = {}
        self._offers: dict[str, JobOffer] = {}
        self._wire = wire
        self._in_hand = in_hand
        self._lock = threading.RLock()
        self._id: str | None = None
        self._all_offered = False

    @property
    def id(self) -> str | None:
        """None while the server knows none."""
        return self._id

    def identify(self) -> str:
        """The id, known to the server together with everything that is registered."""
        with self._lock:
            if self._id is None:
                self._all_offered = False
                self._id = self._wire.new_worker()
            if not self._all_offered:
                self._offer_all(self._id)
            return self._id

    def _offer_all(self, worker: str) -> None:
        try:
            for offer in self._offers.values():
                self._wire.offer(offer, worker)
        except WorkerNotFound:
            self._id = None
            raise
        self._all_offered = True

    def add(self, offer: JobOffer, task_class: type[BaseModel]) -> None:
        """Register a class, and remember it."""
        with self._lock:
            worker = self.identify()
            try:
                self._wire.offer(offer, worker)
            except WorkerNotFound:
                self.renew(worker)
                self._wire.offer(offer, self.identify())
            self._offers[offer.full_name] = offer
            self.classes[offer.full_name] = task_class

    def renew(self, lost: str) -> bool:
        """Another id for one that the server does not know any more; False if the worker went away meanwhile."""
        with self._lock:
            if self._id == lost:
                log.warning("the server does not know worker %s any more: registering again", lost)
                self._in_hand.worker_lost(lost)
                self._id = None
                self.identify()
            return self._id is not None

    def leave(self) -> None:
        """Take it away, in one attempt: the server would find out by itself. The next use takes another id."""
        if not self._lock.acquire(timeout=LEAVE_TIMEOUT_SECONDS):
            return
        try:
            worker, self._id = self._id, None
        finally:
            self._lock.release()
        if worker is None:
            return
        self._in_hand.worker_lost(worker)
        try:
            self._wire.delete_worker(worker, LEAVE_TIMEOUT_SECONDS)
        except ClientError as error:
            log.warning("worker %s could not be taken away, the server will find out: %s", worker, error)
