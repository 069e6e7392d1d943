"""A message for a task that its worker does not know: what becomes of the job (contract, section 2)."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import Connection, select

from celery_jobs.records.admission import HANDED_OVER, unmark
from celery_jobs.records.ids import JobId
from celery_jobs.records.moves import move
from celery_jobs.records.states import JobStatus
from celery_jobs.records.submit import CALL
from celery_jobs.records.tables import jobs
from celery_jobs.records.workers import tasks_known

_c = jobs.c


class Fate(StrEnum):
    """What the record says now."""

    waits = "waits"  # another live worker of its queue has the task
    failed = "failed"
    settled = "settled"  # the message was out of date


def settle(connection: Connection, job_id: JobId, attempt: int) -> Fate:
    """Put the job back where a live worker of its queue lists the task (a rolling deployment); fail it otherwise."""
    handed_over = (_c.id == job_id, _c.attempt == attempt, HANDED_OVER)
    row = connection.execute(select(_c.task, _c.queue, _c.function).where(*handed_over)).first()
    if row is None:
        return Fate.settled
    task = row.task if row.function is None else CALL
    if task in tasks_known(connection, row.queue):
        return Fate.waits if unmark(connection, [job_id]) else Fate.settled
    error = f"NotRegistered: no live worker of queue {row.queue!r} knows the task {task!r}"
    failed = connection.execute(move({JobStatus.pending: JobStatus.failed}, *handed_over, error=error)).rowcount
    return Fate.failed if failed else Fate.settled
