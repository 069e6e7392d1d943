"""PostgreSQL's connections: pools, timeouts, and what tells a server that is gone from one that is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Engine, create_engine, event

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

CONNECT_TIMEOUT_SECONDS = 3
# longer than any statement waits for a lock: a thread must not hang on a connection whose other end says nothing more
SILENCE_SECONDS = 40.0


def sync_engine(url: URL, pool_size: int = 5, *, alone: bool = False, unhurried: bool = False) -> Engine:
    """An engine for threads; opens no connection before its first use. `alone`: each statement commits by itself.

    A statement that is not answered within SILENCE_SECONDS loses its connection, unless the engine is `unhurried`.
    """
    more = _alone() if alone else {}
    engine = create_engine(
        url, pool_size=pool_size, max_overflow=10, pool_timeout=10, connect_args=connection_arguments(), **more
    )
    event.listen(engine, "connect", _configure_session)
    if not unhurried:
        event.listen(engine, "do_connect", _connect_bounded)
    return engine


def async_engine(url: URL, pool_size: int = 6, *, alone: bool = False) -> AsyncEngine:
    """An engine for the event loop. `alone`: each statement commits by itself."""
    from sqlalchemy.ext.asyncio import create_async_engine  # brings the whole ORM

    # no overflow where statements are small: opening a connection, and planning anew on it, costs more than to wait
    more = {**_alone(), "max_overflow": 0} if alone else {"max_overflow": 4}
    engine = create_async_engine(url, pool_size=pool_size, pool_timeout=4, connect_args=connection_arguments(), **more)
    event.listen(engine.sync_engine, "connect", _configure_session)
    return engine


class _BoundedConnection(psycopg.Connection[Any]):
    """Gives up where the server, or what stands before it, keeps the connection open and says nothing."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """The outcome of `gen`, within bounds; the connection is closed where there is none."""
        try:
            return super().wait(gen, interval, SILENCE_SECONDS if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise


def _connect_bounded(_dialect: Any, _record: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    return _BoundedConnection.connect(*args, **options)


def _configure_session(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # every statement here is small; compiling one took 250 ms where the planner had no statistics yet
    cursor.execute("SET jit = off")
    # a client that was paused, or whose host vanished, must not hold a queue's row for longer
    cursor.execute("SET idle_in_transaction_session_timeout = '10s'")
    cursor.execute("SET lock_timeout = '30s'")
    cursor.close()
    connection.commit()


def _alone() -> dict[str, Any]:
    # connections of their own: to switch one to autocommit and back costs as much as a small statement
    return {"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None}


def connection_arguments() -> dict[str, Any]:
    """What every connection to PostgreSQL is made with: how long it waits, and when it counts as broken."""
    # keepalives: a connection whose other end vanished (power, network) must not hold its thread for hours
    return {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,  # milliseconds; keepalives do not count while data is on its way
        "application_name": "celery-jobs",
    }
