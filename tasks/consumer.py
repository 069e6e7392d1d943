"""The worker's own connection to the broker: it never gives up, is back within seconds, and says so once.

Celery waits up to 30 s between two tries and logs each of them, ends the worker when the broker answers with an error
(a full Redis, a failover that made it a replica), and drops the message of a task that it does not know.
"""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

from celery import bootsteps
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

from celery_jobs.records.ids import job_id_of
from celery_jobs.tasks import defaults
from celery_jobs.tasks.execute import ATTEMPT_HEADER
from celery_jobs.tasks.unknown import unknown_tasks

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 2.0
# Celery's loop asks the broker in between, call by call; a silent one must not keep it from a signal or a result
ANSWER_SECONDS = 1.0
_QUIET_SECONDS = 5.0  # a connection that lasted so long was a good one
_log = logging.getLogger("celery_jobs.consumer")


class JobsConsumer(Consumer):
    """Celery's consumer with our patience; named by the setting `worker_consumer`."""

    app: Any
    # as after a first start: there Celery ends a worker that has lost a child before, which its pool just replaces
    restart_count = 0
    _away_since: float | None = None
    _lost_at = 0.0

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, however long it takes; a deployment that forbids it by Celery's settings is obeyed."""
        usual = defaults.broker_transport_options.get("socket_timeout")
        if usual is not None and conn.transport_options.get("socket_timeout") == usual:  # not the deployment's own
            conn.transport_options = conn.transport_options | {"socket_timeout": ANSWER_SECONDS}
        if not self.app.conf[self._get_connection_retry_type(self.first_connection_attempt)]:
            return super().ensure_connected(conn)
        conn = conn.ensure_connection(
            self._not_yet,
            self.app.conf.broker_connection_max_retries,
            interval_start=FIRST_PAUSE_SECONDS,
            interval_step=FIRST_PAUSE_SECONDS,
            interval_max=LONGEST_PAUSE_SECONDS,
            callback=maybe_shutdown,
        )
        self.first_connection_attempt = False
        return conn

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """The broker is there and answers with an error; Celery would ask again at once, and log each time."""
        self._not_yet(exc, 0.0)
        self._rest()

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """The connection is gone, or the broker answers with errors: then a new one at once would meet the same."""
        # a page of text at each loss about a default that we set; Celery shows its warnings whatever was set before
        warnings.filterwarnings(
            "ignore", message=r"\s*In Celery 5\.1 we introduced", category=PendingDeprecationWarning
        )
        try:
            super().on_connection_error_after_connected(exc)
        except Exception as error:  # what closing a broken connection raises must not end the worker
            _log.warning("the broken connection to the broker could not be closed: %r", error)
        self._away_since = self._away_since or time.monotonic()
        if time.monotonic() - self._lost_at < _QUIET_SECONDS:
            self._rest()
        self._lost_at = time.monotonic()

    def _rest(self) -> None:
        maybe_shutdown()
        time.sleep(LONGEST_PAUSE_SECONDS / 2)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """A job of ours whose task this worker lacks goes to a worker that has it, or fails where none has."""
        headers = message.headers or {}
        if (attempt := headers.get(ATTEMPT_HEADER)) is None:
            super().on_unknown_task(body, message, exc)
        else:  # Celery would tell everybody at once that it failed
            message.reject_log_error(_log, self.connection_errors)
            unknown_tasks.meet(job_id_of(str(headers["id"])), int(attempt))

    def connected(self) -> None:
        """Every step but the loop itself has started."""
        if self._away_since is not None:
            _log.warning("consuming again: the broker was away for %.0f s", time.monotonic() - self._away_since)
            self._away_since = None

    def _not_yet(self, error: Exception, _interval: float) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            _log.error("the broker is not reachable, and is tried again until it is: %s", error)


class Connected(bootsteps.StartStopStep):
    """Part of the consumer, after all that talks to the broker; starts again with each new connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """What was handed over before may be gone: a broker that restarts empty, while nobody was connected too."""
        if isinstance(parent, JobsConsumer):
            parent.connected()
        if parent.hub is not None:
            # Celery's own timers may each wait for a silent broker; a worker that is told to stop stops in between
            parent.hub.call_repeatedly(1.0, maybe_shutdown)
        agent = getattr(parent.controller, "celery_jobs_agent", None)
        if agent is not None:
            agent.dispatcher.broker_came_back()
