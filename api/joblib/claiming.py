"""Claiming a task, and waiting for one; a client that leaves while it waits takes none (contract, section 8)."""

from __future__ import annotations

import time

from celery_jobs.api.joblib.dependencies import Call
from celery_jobs.api.joblib.runtime import worker_key
from celery_jobs.api.joblib.task_waits import Client, client_of
from celery_jobs.api.joblib.waiting import Waiter
from celery_jobs.records.remote import claims
from celery_jobs.records.remote.tasks import RemoteTask
from celery_jobs.records.remote.workers import Who


async def claim(call: Call, who: Who, wait_seconds: float | None) -> RemoteTask | None:
    """The oldest task that the worker may run, now its own; None after `wait_seconds`. WorkerNotFound, NotAllowed."""
    seconds = min(wait_seconds or 0, call.runtime.settings.long_poll_max_wait_seconds)
    if seconds <= 0:
        return await call.records.write_one(claims.claim, who, call.lease_seconds)
    deadline = time.monotonic() + seconds
    served = await call.records.read(claims.served, who)
    with call.runtime.vacancies.entered([worker_key(who.worker), *served]) as waiter:
        async with client_of(call.request, waiter) as client:
            return await _wait(call, who, deadline, waiter, client)


async def _wait(call: Call, who: Who, deadline: float, waiter: Waiter, client: Client) -> RemoteTask | None:
    room = call.runtime.vacancies
    while not client.left:
        task = await call.records.write_one(claims.claim, who, call.lease_seconds)
        if task is not None:
            return await _handed_over(call, who, task, client)
        if room.closed or not await room.wait(waiter, call.records, deadline):
            return None
    return None


async def _handed_over(call: Call, who: Who, task: RemoteTask, client: Client) -> RemoteTask | None:
    if client.left:
        call.records.changed(await call.records.write(claims.put_back, task.id, who))
        return None
    if task.registration is not None:
        call.runtime.vacancies.call_one(task.registration)  # there may be more, of which only one was told
    return task
