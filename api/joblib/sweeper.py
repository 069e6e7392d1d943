"""Sweeping: silent remote workers, claims without a report, jobs that nobody serves (contract, section 8).

Only a process that has been in touch for a whole worker timeout judges: in an outage nobody could be heard. Safe in
several processes at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from celery_jobs.api.joblib.access import HostRecords, Records
from celery_jobs.api.joblib.runtime import PULSES_PER_TIMEOUT, Runtime
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.moves import change_nothing
from celery_jobs.records.remote import claims, sweep
from celery_jobs.records.remote.leaving import Gone, bury_lapsed, lapsed
from celery_jobs.records.remote.settings import load_joblib_settings
from celery_jobs.records.tables import workers

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

AT_MOST_EVERY_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 30.0
_log = logging.getLogger("celery_jobs.joblib.sweep")

GiveRecords = Callable[[], AbstractAsyncContextManager[Records]]
SessionFactory = Callable[[], "AbstractAsyncContextManager[AsyncSession]"]


async def sweep_when_due(runtime: Runtime, records: Records) -> bool:
    """One sweep, unless the last one was less than a second ago."""
    if time.monotonic() - runtime.swept_at < AT_MOST_EVERY_SECONDS:
        return False
    runtime.swept_at = time.monotonic()
    await _pulse(runtime, records)
    await _sweep(runtime, records)
    return True


async def keep_sweeping(runtime: Runtime, give_records: GiveRecords, interval_seconds: float) -> None:
    """Sweep for ever; an outage is told once when it begins and once when it is over."""
    pulse = min(runtime.settings.worker_timeout_seconds / PULSES_PER_TIMEOUT, interval_seconds)
    due, failing = time.monotonic() + interval_seconds, False
    while True:
        await asyncio.sleep(pulse)
        try:
            async with give_records() as records:
                await _pulse(runtime, records)
                if time.monotonic() >= due:
                    due = time.monotonic() + interval_seconds
                    await _sweep(runtime, records)
            if failing:
                _log.warning("sweeping remote workers works again")
            failing = False
        except Exception as error:
            runtime.contact.lost()
            if not failing:
                fault = None if isinstance(error, DatabaseUnavailable) else error
                _log.warning("remote workers cannot be swept: %s", error, exc_info=fault)
            failing = True


async def _pulse(runtime: Runtime, records: Records) -> None:
    """Note that the database takes writes, and return claims that nobody reported running."""
    try:
        await records.write_one(change_nothing, workers.c.seen_at)
    except DatabaseUnavailable:
        runtime.contact.lost()
        raise
    runtime.contact.sign()
    longest = runtime.settings.longest_claim_seconds
    if runtime.contact.seconds >= longest and await records.read(claims.overdue, longest):
        tell(records, await records.write(sweep.return_overdue, longest))


async def _sweep(runtime: Runtime, records: Records) -> None:
    timeout = runtime.settings.worker_timeout_seconds
    if runtime.contact.seconds >= timeout:
        gone = Gone()
        for incarnation in await records.read(lapsed):
            gone += await records.write(bury_lapsed, incarnation)
        if gone.workers:
            _log.warning("took %d silent remote workers away; %d tasks failed", gone.workers, len(gone.ended))
        tell(records, gone)
    if await records.read(sweep.untidy, timeout):
        await records.write(sweep.tidy, timeout)


def tell(records: Records, gone: Gone) -> None:
    """Streams hear of what ended, waiting claims of what went back."""
    ids = [*gone.ended, *gone.returned, *gone.vacant]
    if ids:
        records.changed(ids)


async def run_cleanup_sweeper(
    *, base_url: str = "", interval_seconds: float = 30, session_factory: SessionFactory | None = None
) -> None:
    """Sweep for ever, in the host app's process: on its sessions, or by asking `{base_url}/v1/joblib/sweep`.

    Run it as a task: `asyncio.create_task(run_cleanup_sweeper(base_url=…))`. ValueError when neither is given.
    """
    if session_factory is None:
        if not base_url:
            raise ValueError("run_cleanup_sweeper needs the base_url of the service, or a session_factory")
        await _keep_asking(base_url, interval_seconds)
        return
    runtime = Runtime(load_joblib_settings())
    make_session = session_factory

    @asynccontextmanager
    async def records() -> AsyncGenerator[Records]:
        async with make_session() as session:
            yield HostRecords(session, runtime.changed)

    await keep_sweeping(runtime, records, interval_seconds)


async def _keep_asking(base_url: str, interval_seconds: float) -> None:
    import httpx  # a service that sweeps by itself does without

    failing: Any = None
    async with httpx.AsyncClient(timeout=_ANSWER_SECONDS) as client:
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                answer = await client.post(f"{base_url.rstrip('/')}/v1/joblib/sweep")
                answer.raise_for_status()
                failing = None
            except httpx.HTTPError as error:
                if failing is None:
                    _log.warning("the sweep of remote workers is not answered: %s", error)
                failing = error
