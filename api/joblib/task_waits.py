"""Waiting for a task's end: by the readers of the streams in this service, by one look a second in a host app."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from fastapi import Request

from celery_jobs.api.joblib.access import OwnRecords
from celery_jobs.api.joblib.dependencies import Call
from celery_jobs.api.joblib.waiting import Waiter
from celery_jobs.api.stream import wait
from celery_jobs.api.stream.response import close_when_client_leaves
from celery_jobs.records.errors import JobNotFound, RemoteTaskNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.remote import tasks
from celery_jobs.records.remote.tasks import RemoteTask, spelled
from celery_jobs.records.states import ENDED_TASKS


async def wait_for_end(call: Call, task: RemoteTask, seconds: float) -> RemoteTask:
    """The task once it has ended, or as it is after `seconds`; RemoteTaskNotFound when it is deleted meanwhile."""
    longest = call.runtime.settings.long_poll_max_wait_seconds
    seconds = min(seconds, longest)
    if task.status in ENDED_TASKS or seconds <= 0:
        return task
    if isinstance(call.records, OwnRecords):
        try:
            await wait.wait_for_end(call.request, task.id, seconds, longest)
        except JobNotFound:
            raise RemoteTaskNotFound(spelled(task.id)) from None
    else:
        return await _wait_in_host(call, task.id, seconds)
    return await _read_together(call, task.id)


async def _read_together(call: Call, task_id: JobId) -> RemoteTask:
    """The task; all who were woken by one end share a read."""
    reads = call.runtime.reads
    under_way = reads.get(task_id)
    if under_way is not None:
        found = await asyncio.shield(under_way)
        if found.status in ENDED_TASKS:
            return found  # else it began before the end, for somebody whose time was over
    mine = asyncio.ensure_future(call.records.read(tasks.task, task_id))
    if task_id not in reads:
        reads[task_id] = mine
        mine.add_done_callback(lambda read: (reads.pop(task_id), read.cancelled() or read.exception()))
    # the others go on reading when this client leaves
    return await asyncio.shield(mine)


async def _wait_in_host(call: Call, task_id: JobId, seconds: float) -> RemoteTask:
    room, deadline = call.runtime.ends, time.monotonic() + seconds
    with room.entered([task_id]) as waiter:
        async with client_of(call.request, waiter) as client:
            while True:
                # before the first wait too, since it may have ended before its place in the room was taken
                found = await call.records.read(tasks.task, task_id)
                if found.status in ENDED_TASKS or client.left or room.closed:
                    return found
                # called for whatever was written, such as that it runs
                if not await room.wait(waiter, call.records, deadline):
                    return await call.records.read(tasks.task, task_id)


class Client:
    """Whoever made the request; `left` when nobody waits for the answer any more."""

    left = False


@contextlib.asynccontextmanager
async def client_of(request: Request, waiter: Waiter) -> AsyncGenerator[Client]:
    """The client of a request; a waiter whose client leaves waits no longer."""
    client = Client()

    def leave() -> None:
        client.left = True
        waiter.call()

    listener = asyncio.create_task(close_when_client_leaves(request.receive, leave))
    try:
        await asyncio.sleep(0)  # it may have left before its request was read
        yield client
    finally:
        listener.cancel()
