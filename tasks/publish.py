"""Publishing messages: one held producer, bounded times, never on an event loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from kombu.utils.json import loads

from celery_jobs.records.admission import Outgoing
from celery_jobs.records.ids import JobId
from celery_jobs.tasks.celery import app
from celery_jobs.tasks.execute import ATTEMPT_HEADER

_log = logging.getLogger("celery_jobs.publish")

CONNECT_TIMEOUT_SECONDS = 3.0
REFUSAL_COUNTS_SECONDS = 5.0  # a broker that answers with errors (full, a replica) is not over them by answering


class Publisher:
    """Sends the messages of admitted jobs, by one thread at a time; says when an outage begins and when it ends."""

    def __init__(self) -> None:
        self.trouble: str | None = None  # why the broker takes no messages, while it does not
        self._trouble_since = 0.0
        self._refused_at = -REFUSAL_COUNTS_SECONDS
        self._connection: Any = None
        self._producer: Any = None
        # without a result backend there is nothing to store, and Celery then spares both sides the work
        self._ignore_result = not app.conf.result_backend

    def publish(self, batch: Sequence[Outgoing]) -> list[JobId]:
        """Send the messages in their order; the ids that the broker did not take."""
        for number, job in enumerate(batch):
            try:
                self._send(job)
            except Exception as error:
                self._failed(error)
                return [waiting.id for waiting in batch[number:]]
            self._works()
        return []

    def answers(self) -> bool:
        """False while the broker is away; it is asked only after it refused something."""
        if self.trouble is None:
            return True
        try:
            with self._open().channel() as channel:  # on Redis, to open a channel is to ask
                return channel is not None
        except Exception as error:
            self._failed(error)
            return False

    def is_over(self) -> bool:
        """Whether the broker, which answers, may be thought to take messages; there was none to find it out with."""
        if time.monotonic() - self._refused_at >= REFUSAL_COUNTS_SECONDS:
            self._works()
        return self.trouble is None

    def _works(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            _log.warning("the broker takes messages again, after %.0f s", time.monotonic() - self._trouble_since)

    def _failed(self, error: Exception) -> None:
        if self._connection is not None and not isinstance(
            error.__cause__ or error, self._connection.connection_errors
        ):
            self._refused_at = time.monotonic()
        if self.trouble is None:
            self._trouble_since = time.monotonic()
            _log.warning("the broker does not take messages, jobs wait until it does: %r", error)
        self.trouble = f"takes no messages: {type(error).__name__}"
        self.close()

    def backlog(self, queue: str) -> int | None:
        """How many messages lie in a queue; None when the broker does not say."""
        try:
            with self._open().channel() as channel:
                return int(channel.queue_declare(queue=queue, passive=True).message_count)
        except Exception as error:
            if str(getattr(error, "reply_code", "")) == "404":
                return 0  # Redis has no empty lists
            self._failed(error)
            return None

    def close(self) -> None:
        """Drop the connection; the next publish opens another."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            try:
                connection.close()
            except Exception as error:
                _log.debug("closing a broken broker connection: %r", error)

    def _open(self) -> Any:
        if self._connection is None:
            self._connection = app.connection_for_write(connect_timeout=CONNECT_TIMEOUT_SECONDS)
            self._connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_TIMEOUT_SECONDS)
            self._producer = app.amqp.Producer(self._connection, auto_declare=False)
        return self._connection

    def _send(self, job: Outgoing) -> None:
        self._open()
        app.send_task(
            job.task,
            args=loads(job.args),
            kwargs=loads(job.kwargs),
            task_id=job.celery_id,
            queue=job.queue,
            retries=job.retries,
            producer=self._producer,
            retry=False,
            ignore_result=self._ignore_result,
            headers={ATTEMPT_HEADER: job.attempt},
        )
