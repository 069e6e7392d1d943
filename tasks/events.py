"""Task events in batches: a worker that runs hundreds of jobs a second would spend half its time publishing them.

Celery gathers task events and sends what gathered at each turn of the loop, which is one message an event under load.
Here a batch waits a tenth of a second; watchers (Flower, the mirror) see no difference.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import bootsteps
from celery.worker import state as worker_state

GATHER_SECONDS = 0.1


class EventBatches(bootsteps.StartStopStep):
    """Part of the consumer, after its events; starts again with each new connection."""

    requires = ("celery.worker.consumer.events:Events",)

    def start(self, parent: Any) -> None:
        """Replace the flush at each turn of the loop."""
        dispatcher = parent.event_dispatcher
        if dispatcher is not None:
            dispatcher.send = partial(_send_once, dispatcher.send)
        if parent.hub is not None and dispatcher is not None and dispatcher.on_send_buffered is not None:
            dispatcher.on_send_buffered = _Gathering(parent.hub, dispatcher)

    def stop(self, parent: Any) -> None:
        """Send what gathered."""
        if parent.event_dispatcher is not None:
            parent.event_dispatcher.flush()


def _send_once(send: Any, *args: Any, **fields: Any) -> Any:
    """Celery's heartbeat would hold the worker's loop for as long as the broker is silent; one that failed is kept."""
    return send(*args, **fields | {"retry": False})


class _Gathering:
    """Called after each event; the first of a batch plans its flush."""

    def __init__(self, hub: Any, dispatcher: Any) -> None:
        self._hub = hub
        self._dispatcher = dispatcher
        self._planned = False

    def __call__(self) -> None:
        if worker_state.should_stop is not None:  # the loop has ended, its timers too
            self._dispatcher.flush()
        elif not self._planned:
            self._planned = True
            self._hub.call_later(GATHER_SECONDS, self._flush)

    def _flush(self) -> None:
        self._planned = False
        self._dispatcher.flush()
