"""Waiting for a job's end: a place in the hub like a stream's, so that waiting costs the database nothing more.

The client that leaves ends its wait, and so does the service that stops: the answer then says what is true now.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import Depends, Request

from celery_jobs.api.deps import JobIdDep
from celery_jobs.api.prefer import PreferDep
from celery_jobs.api.stream.hub import Hub, News, Subscription
from celery_jobs.api.stream.response import close_when_client_leaves
from celery_jobs.api.stream.shared import SharedRows, first_row
from celery_jobs.records.errors import JobNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobRecord, StreamRow
from celery_jobs.records.states import TERMINAL

_UNSEEN_SECONDS: Final = 0.5  # the longest time that an end may go unseen, where its hint was lost


async def wait_for_end(
    request: Request, job_id: JobId, seconds: float, longest_seconds: float | None = None
) -> JobRecord:
    """The record once the job has ended, or as it is after `seconds`; JobNotFound, also when it is deleted meanwhile.

    ShuttingDown and DatabaseUnavailable as for a stream that opens. At most JOBS_LONG_POLL_MAX_WAIT_SECONDS, unless
    `longest_seconds` says otherwise.
    """
    hub: Hub = request.app.state.hub
    rows: SharedRows = request.app.state.rows
    subscription = hub.subscribe(job_id, _UNSEEN_SECONDS)
    listener = asyncio.create_task(close_when_client_leaves(request.receive, subscription.close))
    try:
        row = await first_row(rows, subscription)
        longest = longest_seconds or request.app.state.service.settings.long_poll_max_wait_seconds
        row = await _end_or_latest(subscription, row, min(seconds, longest))
        if row.status not in TERMINAL and not hub.closing.is_set():
            # the reader may have seen nothing for a while: what was true then is no answer
            row = await first_row(rows, subscription)
        return row.record
    finally:
        listener.cancel()
        subscription.close()


async def _waited(request: Request, job_id: JobIdDep, prefer: PreferDep) -> dict[str, str]:
    """Wait for the job's end where the client prefers that; the headers that say so."""
    if prefer.wait_seconds is None:
        return {}
    await wait_for_end(request, job_id, prefer.wait_seconds)
    return prefer.applied(waited=True)


WaitedDep = Annotated[dict[str, str], Depends(_waited)]


async def _end_or_latest(subscription: Subscription, row: StreamRow, seconds: float) -> StreamRow:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while row.status not in TERMINAL and (left := deadline - loop.time()) > 0:
        news = await subscription.next(left)
        if news is News.closed:
            return row
        if news is News.gone or (isinstance(news, StreamRow) and news.deleted):
            raise JobNotFound(row.id)
        if isinstance(news, StreamRow):
            row = news
    return row
