"""Submitting a job that has ended once more: the same task and arguments under a new id (contract, section 3)."""

from __future__ import annotations

import json

from sqlalchemy import Connection, select

from celery_jobs.records.errors import (
    JobNotFound,
    JobNotOurs,
    JobNotRepeatable,
    JobUnfinished,
    RemoteJobGone,
    RemoteJobNotFound,
)
from celery_jobs.records.ids import JobId
from celery_jobs.records.remote import registering
from celery_jobs.records.remote.names import FullName
from celery_jobs.records.states import TERMINAL, JobKind, JobStatus
from celery_jobs.records.submit import IN_MEMORY, NewJob
from celery_jobs.records.tables import jobs

_c = jobs.c
# its own times and its key do not carry over: it starts as soon as it can and never expires
_KEPT = (
    *(_c.task, _c.queue, _c.args, _c.kwargs, _c.priority),
    *(_c.interruptible, _c.retry_on_worker_lost, _c.max_attempts, _c.room_id, _c.job_name, _c.function),
)


def again(connection: Connection, job_id: JobId) -> NewJob:
    """A new job that does what this one did.

    JobNotFound, JobUnfinished, JobNotOurs, JobNotRepeatable, RemoteJobGone.
    """
    query = select(*_KEPT, _c.tags, _c.status, _c.kind).where(_c.id == job_id, _c.deleted_at.is_(None))
    row = connection.execute(query).first()
    if row is None:
        raise JobNotFound(job_id)
    if row.kind == JobKind.foreign:
        raise JobNotOurs(job_id)
    if JobStatus(row.status) not in TERMINAL:
        raise JobUnfinished(job_id, row.status)
    if row.function == IN_MEMORY:
        raise JobNotRepeatable(job_id)
    kept = {column.name: row[index] for index, column in enumerate(_KEPT)}
    registration = _registration(connection, row.job_name) if row.kind == JobKind.remote else None
    return NewJob(**kept, tags=json.loads(row.tags), retry_of=job_id, registration=registration)


def _registration(connection: Connection, full_name: str) -> str:
    """What is registered under the name now; it may be another than then."""
    try:
        return registering.find(connection, FullName.parse(full_name)).id
    except RemoteJobNotFound:
        raise RemoteJobGone(full_name) from None
