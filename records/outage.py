"""Which database errors pass by themselves, and how long to wait between tries."""

from __future__ import annotations

import random
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

# PostgreSQL: deadlock, serialization, server shutting down or starting, too many connections, a standby that takes over
_PASSING_STATES = ("40", "57P", "08", "53", "25006", "25P03", "55P03")


def is_outage(error: BaseException) -> bool:
    """True when the same call may succeed later: no connection, a lock, a restart; False for faults of the call."""
    if isinstance(error, PoolTimeout | ConnectionError | TimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_PASSING_STATES)
    text = str(error.orig)
    if "no such table" in text or "no such column" in text or "syntax error" in text:
        return False
    return isinstance(error, OperationalError | InterfaceError)


def is_momentary(error: BaseException) -> bool:
    """True when the same call may succeed at once: a pooled connection was cut, or another transaction had to win."""
    if not isinstance(error, DBAPIError):
        return False
    return error.connection_invalidated or str(getattr(error.orig, "sqlstate", None) or "").startswith("40")


def was_refused(error: BaseException) -> bool:
    """True when the server itself says that it did not do it; a connection that broke says nothing."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) is not None


def backoff_seconds(first: float = 0.05, most: float = 2.0) -> Iterator[float]:
    """Doubling pauses with jitter, so that waiting processes do not return in step."""
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, most)
