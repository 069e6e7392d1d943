"""Is the service able to do its work: database, broker, workers. Each look is bounded and none raises."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from celery_jobs.records import workers
from celery_jobs.records.moves import change_nothing
from celery_jobs.records.store import AsyncStore
from celery_jobs.records.tables import jobs
from celery_jobs.tasks.celery import app

LOOK_SECONDS = 1.0
WRITE_SECONDS = 2.0  # a busy database makes a write wait its turn
_FRESH_SECONDS = 0.2
_JOBS_WAIT = "submitted jobs wait until it is back"


@dataclass(frozen=True, slots=True)
class Check:
    """One named check: whether it passed, and a sentence about it."""

    ok: bool
    detail: str


class Health:
    """The checks of this process."""

    def __init__(self, store: AsyncStore, embedded: bool, trouble: Callable[[], str | None]) -> None:
        self._store = store
        self._embedded = embedded
        self._broker = _BrokerLook()
        self._looking: asyncio.Task[tuple[Check, Check]] | None = None
        self._looked_at = 0.0
        self._trouble = trouble  # a broker that answers may refuse messages all the same: full, or a replica

    async def checks(self) -> dict[str, Check]:
        """database, broker and workers, looked at side by side."""
        database, broker = await asyncio.gather(self.database(), self._broker_check())
        return {"database": database[0], "broker": broker, "workers": database[1]}

    async def database(self) -> tuple[Check, Check]:
        """The database, and what it says of workers: one look for all who ask at the same time."""
        if self._looking is None or (self._looking.done() and time.monotonic() - self._looked_at > _FRESH_SECONDS):
            self._looked_at = time.monotonic()
            self._looking = asyncio.create_task(self._look_at_database())
        return await asyncio.shield(self._looking)

    async def _look_at_database(self) -> tuple[Check, Check]:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                live = await self._store.read(_look)
        except Exception as error:
            return Check(False, f"not reachable: {type(error).__name__}"), Check(False, "unknown: no database")
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._store.write_one(change_nothing, jobs.c.version)
        except Exception as error:  # locked, full, or a standby: no job can be taken, and no worker can report
            why = f"takes no writes: {type(error).__name__}"
            return Check(False, why), Check(live > 0, f"{live} alive when they could last report")
        if live == 0:
            return Check(True, "reachable"), Check(False, "no worker is alive: jobs wait until one starts")
        return Check(True, "reachable"), Check(True, f"{live} alive")

    async def _broker_check(self) -> Check:
        if self._embedded:
            return Check(True, "embedded")
        check = await self._broker.look()
        trouble = self._trouble()
        return Check(False, f"{trouble}; {_JOBS_WAIT}") if check.ok and trouble is not None else check


def _look(connection: Connection) -> int:
    connection.execute(text("SELECT 1"))
    return workers.live(connection)


class _BrokerLook:
    """One look at a time, in a thread: a silent broker must not cost a thread for each request."""

    def __init__(self) -> None:
        self._last: tuple[float, Check] | None = None
        self._looking: asyncio.Future[Check] | None = None
        self._began = 0.0

    async def look(self) -> Check:
        """The newest answer, at most a second old; a look that takes longer counts as no answer."""
        if self._last is not None and time.monotonic() - self._last[0] < LOOK_SECONDS:
            return self._last[1]
        if self._looking is None or self._looking.done():
            self._looking = _in_thread(_ping_broker)
            self._began = time.monotonic()
        # nobody waits again for a look that has had its time
        left = self._began + LOOK_SECONDS - time.monotonic()
        done, _ = await asyncio.wait({self._looking}, timeout=max(0.0, left))
        check = self._looking.result() if done else Check(False, "does not answer")
        self._last = (time.monotonic(), check)
        return check


def _in_thread(look: Any) -> asyncio.Future[Check]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Check] = loop.create_future()

    def run() -> None:
        check = look()
        try:
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(check))
        except RuntimeError:
            return  # the loop has ended meanwhile

    threading.Thread(target=run, name="broker-look", daemon=True).start()
    return future


def _ping_broker() -> Check:
    try:
        with app.connection_for_write(connect_timeout=LOOK_SECONDS) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=LOOK_SECONDS)
            with connection.channel() as channel:
                client = getattr(channel, "client", None)
                if client is not None:
                    client.ping()
    except Exception as error:
        return Check(False, f"not reachable: {type(error).__name__}; {_JOBS_WAIT}")
    return Check(True, "reachable")
