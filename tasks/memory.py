"""The broker inside the embedded service: kombu's in-memory transport, woken by each message instead of polling."""

from __future__ import annotations

import threading
import time
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, memory

SCHEME = "jobs-memory"

# a consumer that waits for a free slot rather than for a message is not always woken
_LOOK_EVERY_SECONDS = 0.05


class _Bell:
    """Rung by every put and every ack; whoever waits sees each ring since it last looked."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.rings = 0

    def ring(self) -> None:
        with self._condition:
            self.rings += 1
            self._condition.notify_all()

    def wait(self, known: int, timeout: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self.rings != known, timeout)


_bell = _Bell()


class Channel(memory.Channel):
    """Rings when there may be something to deliver."""

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        super()._put(queue, message, **kwargs)
        _bell.ring()

    def _put_fanout(self, exchange: str, message: Any, routing_key: str | None = None, **kwargs: Any) -> None:
        super()._put_fanout(exchange, message, routing_key, **kwargs)
        _bell.ring()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """A slot is free again, and so is its share of the prefetch."""
        super().basic_ack(delivery_tag, multiple)
        _bell.ring()


class Transport(memory.Transport):
    """Waits for the bell where kombu's would sleep."""

    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message; TimeoutError (socket.timeout) when there was none in time."""
        cycle: Any = self.cycle
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            known = _bell.rings
            try:
                cycle.get(self._deliver, timeout=timeout)
            except Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError from None
                _bell.wait(known, _LOOK_EVERY_SECONDS)
            else:
                return


def register() -> None:
    """Teach kombu the scheme of this broker's URL."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
