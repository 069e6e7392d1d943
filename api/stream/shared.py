"""Reads that streams and waits begin with: those that are asked for at the same time are one.

A thousand clients that come back after a restart of a proxy then cost a few reads, and not a thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from celery_jobs.api.stream.hub import Subscription
from celery_jobs.records.errors import JobNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import StreamRow

_GATHER_SECONDS: Final = 0.005  # while another read is under way


class Rows(Protocol):
    """Where rows come from."""

    async def rows(self, ids: Collection[JobId]) -> Mapping[JobId, StreamRow]:
        """The rows of these jobs; unknown ones are absent."""
        ...


class SharedRows:
    """Rows, each as it is at some moment after it was asked for; for one event loop."""

    def __init__(self, source: Rows) -> None:
        self._source = source
        self._asked: set[JobId] = set()
        self._next: asyncio.Task[Mapping[JobId, StreamRow]] | None = None
        self._reading = 0

    async def rows(self, ids: Collection[JobId]) -> Mapping[JobId, StreamRow]:
        """The rows of these jobs, and perhaps of others; unknown ones are absent. DatabaseUnavailable."""
        self._asked.update(ids)
        if self._next is None:
            self._next = asyncio.create_task(self._read())
            self._next.add_done_callback(_looked_at)
        return await asyncio.shield(self._next)  # one client that leaves must not end the read of the others

    async def _read(self) -> Mapping[JobId, StreamRow]:
        await asyncio.sleep(_GATHER_SECONDS if self._reading else 0)
        asked, self._asked, self._next = self._asked, set(), None
        self._reading += 1
        try:
            return await self._source.rows(asked)
        finally:
            self._reading -= 1


async def first_row(source: Rows, subscription: Subscription) -> StreamRow:
    """The row with which somebody begins to watch a job; JobNotFound when there is none."""
    row = (await source.rows([subscription.job_id])).get(subscription.job_id)
    if row is None or row.deleted:
        raise JobNotFound(subscription.job_id)
    subscription.seen(row)
    return row


def _looked_at(task: asyncio.Task[Mapping[JobId, StreamRow]]) -> None:
    if not task.cancelled():
        task.exception()  # all who asked may have left
