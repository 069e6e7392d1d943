"""A task as the one who submitted it sees it."""

from __future__ import annotations

import logging
import time
from typing import Any

from pydantic import PrivateAttr

from celery_jobs.client.errors import ClientError
from celery_jobs.client.retry import CALL_PATIENCE_SECONDS, Backoff, Hurry, patiently
from celery_jobs.client.task import RemoteTask
from celery_jobs.client.wire import WAIT_SECONDS, Answer, Wire, parsed

log = logging.getLogger("celery_jobs.client")

_POLL_SECONDS = 1.0  # where the server does not wait


class SubmittedTask(RemoteTask):
    """A task as it was when it was last looked at."""

    _wire: Wire = PrivateAttr()

    @classmethod
    def of(cls, body: Any, wire: Wire) -> SubmittedTask:
        """The task in an answer."""
        task = parsed(cls, body)
        task._wire = wire
        return task

    def refresh(self) -> SubmittedTask:
        """Look again; itself."""
        return self._set(patiently(lambda _: self._wire.task(self.id), CALL_PATIENCE_SECONDS, Hurry()))

    def wait(self, timeout: float | None = None) -> SubmittedTask:
        """Itself once it has ended, over outages of the server; TimeoutError if that takes longer than `timeout`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        backoff = Backoff()
        while not self.ended:
            left = float(WAIT_SECONDS) if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"task {self.id} is still {self.status} after {timeout:g} s")
            pause = self._look(left, backoff)
            time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - time.monotonic())))
        return self

    def _look(self, left_seconds: float, backoff: Backoff) -> float:
        """Seconds to sleep before the next look."""
        begun = time.monotonic()
        wait = min(WAIT_SECONDS, max(1, round(left_seconds)))
        try:
            answer = self._wire.task(self.id, wait)
        except ClientError as error:
            if not error.transient:
                raise
            if not backoff.failing:
                log.warning("the job service does not answer, trying again until it does: %s", error)
            return backoff.pause_after(error)
        self._set(answer)
        backoff.reset()
        if self.ended:
            return 0.0
        return max(0.0, begun + min(_POLL_SECONDS, wait) - time.monotonic())

    def cancel(self) -> SubmittedTask:
        """Cancel it; itself. InvalidTaskTransition if it has ended otherwise."""
        body = {"status": "cancelled"}
        answer = patiently(
            lambda _: self._wire.report(self.id, body, CALL_PATIENCE_SECONDS), CALL_PATIENCE_SECONDS, Hurry()
        )
        return self._set(Answer(answer, waited=False))

    def _set(self, answer: Answer) -> SubmittedTask:
        seen = parsed(RemoteTask, answer.body)
        for field in RemoteTask.model_fields:
            setattr(self, field, getattr(seen, field))
        return self
