"""Asking for tasks: for a worker that is renewed when the server has forgotten it, or for an id that somebody gave."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from celery_jobs.client.asking import Asking, Claim
from celery_jobs.client.errors import WorkerNotFound
from celery_jobs.client.task import ClaimedTask, InHand, Runs
from celery_jobs.client.wire import Answer, Wire, parsed
from celery_jobs.client.worker import Worker


class Claims(Protocol):
    """Where a TaskStream gets its tasks from."""

    @property
    def worker_id(self) -> str | None:
        """For whom; None while that is not known."""
        ...

    def ask(self, wait_seconds: int) -> Claim:
        """Ask once; errors are raised."""
        ...

    def keep(self, asking: Asking) -> None:
        """Keep a question whose stream was stopped."""
        ...

    def kept(self) -> Asking | None:
        """One that was kept; the caller has it now."""
        ...


class WorkerClaims:
    """For the worker of a JobManager."""

    def __init__(self, wire: Wire, worker: Worker, in_hand: InHand, runs: Runs) -> None:
        self._wire, self._worker, self._in_hand, self._runs = wire, worker, in_hand, runs
        self._kept: deque[tuple[str | None, Asking]] = deque()

    @property
    def worker_id(self) -> str | None:
        """The worker's id."""
        return self._worker.id

    def ask(self, wait_seconds: int) -> Claim:
        """Ask; a worker that the server does not know is renewed first."""
        for _ in range(2):
            worker = self._worker.identify()
            try:
                return self._taken(self._wire.claim(worker, wait_seconds))
            except WorkerNotFound:
                if not self._worker.renew(worker):
                    break
        return Claim(None, waited=False)

    def _taken(self, answer: Answer) -> Claim:
        claim = claim_of(answer)
        if claim.task is not None:
            claim.task.belongs_to(self._runs)
            self._in_hand.take(claim.task)
        return claim

    def keep(self, asking: Asking) -> None:
        """For the next stream; if there is none, the server takes back what it brings."""
        self._kept.append((self._worker.id, asking))

    def kept(self) -> Asking | None:
        """The oldest that asks for this worker still."""
        while self._kept:
            worker, asking = self._kept.popleft()
            if worker == self._worker.id:
                return asking
        return None


class GivenWorkerClaims:
    """For a worker id from elsewhere; what is claimed cannot `run`, since no class is registered here."""

    def __init__(self, wire: Wire, worker_id: str) -> None:
        self._wire, self._worker_id = wire, worker_id

    @property
    def worker_id(self) -> str | None:
        """The given one."""
        return self._worker_id

    def ask(self, wait_seconds: int) -> Claim:
        """Ask."""
        return claim_of(self._wire.claim(self._worker_id, wait_seconds))

    def keep(self, asking: Asking) -> None:
        """Dropped: the server takes back what it brings."""

    def kept(self) -> Asking | None:
        """None ever."""
        return None


def claim_of(answer: Answer) -> Claim:
    """The task in an answer, if any."""
    body = answer.body.get("task")
    return Claim(None if body is None else parsed(ClaimedTask, body), answer.waited)
