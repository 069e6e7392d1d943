"""Saying what became of a task, over outages, and never wrongly taking a report for refused."""

from __future__ import annotations

from typing import Any

from celery_jobs.client.errors import ClientError, Conflict
from celery_jobs.client.results import clean, jsonable, one_line
from celery_jobs.client.retry import (
    REPORT_PATIENCE_SECONDS,
    Backoff,
    Hurry,
    Patience,
    patiently,
    wait_for_another_try,
)
from celery_jobs.client.task import ClaimedTask, InHand
from celery_jobs.client.wire import REQUEST_TIMEOUT_SECONDS, Wire, cancelled_in


class Reports:
    """Reports for the worker that claimed a task. What the server refuses is raised."""

    def __init__(self, wire: Wire, in_hand: InHand, hurry: Hurry) -> None:
        self._wire, self._in_hand, self._hurry = wire, in_hand, hurry

    def start(self, task: ClaimedTask) -> None:
        """It runs."""
        self._report(task, "running", {})

    def complete(self, task: ClaimedTask, result: Any = None) -> None:
        """It is done; ResultNotJson for a result that JSON cannot hold, then nothing is reported."""
        plain = jsonable(result)
        self._start_first(task)
        self._report(task, "completed", {"result": plain})

    def fail(
        self, task: ClaimedTask, error: str | BaseException, patience_seconds: float = REPORT_PATIENCE_SECONDS
    ) -> None:
        """It failed, for this reason."""
        self._start_first(task, patience_seconds)
        reason = clean(error) if isinstance(error, str) else one_line(error)
        self._report(task, "failed", {"error": reason}, patience_seconds)

    def _start_first(self, task: ClaimedTask, patience_seconds: float = REPORT_PATIENCE_SECONDS) -> None:
        if task.status == "claimed":  # only what runs can end
            self._report(task, "running", {}, patience_seconds)

    def _report(
        self, task: ClaimedTask, status: str, fields: dict[str, Any], seconds: float = REPORT_PATIENCE_SECONDS
    ) -> None:
        body = {"status": status, **fields}
        if task.worker_id is not None:
            body["worker_id"] = task.worker_id  # another one of the same identity may hold it by now
        task.status = self._send(task, body, Patience(seconds, self._hurry))
        if task.ended:
            self._in_hand.drop(task)

    def _send(self, task: ClaimedTask, body: dict[str, Any], patience: Patience) -> str:
        """The state that it has then: failed, and not completed, if the server cannot keep the result."""
        backoff = Backoff()
        while True:
            try:
                if backoff.failing and self._has_arrived(task, body["status"], patience):
                    return body["status"]
                answer = self._wire.report(task.id, body, _timeout(patience))
                self._in_hand.cancelled(cancelled_in(answer))
                return str(answer.get("status", body["status"]))
            except Conflict:
                # an earlier try may have arrived after the look at the task and before this one
                if backoff.failing and patiently(
                    lambda left: self._has_arrived(task, body["status"], left), patience.left_seconds, self._hurry
                ):
                    return body["status"]
                raise
            except ClientError as error:
                if not error.transient or not wait_for_another_try(error, backoff, patience):
                    raise

    def _has_arrived(self, task: ClaimedTask, status: str, patience: Patience) -> bool:
        """True if the task is this worker's and in the reported state, by a report whose answer was lost."""
        seen = self._wire.task(task.id, timeout_seconds=_timeout(patience)).body
        return seen.get("status") == status and seen.get("worker_id") == task.worker_id


def _timeout(patience: Patience) -> float:
    return min(REQUEST_TIMEOUT_SECONDS, max(patience.left_seconds, 1.0))
