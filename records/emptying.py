"""A database between two tests of somebody's tasks: what one left must not be there for the next."""

from __future__ import annotations

from sqlalchemy import Connection, delete, false, null, select, update

from celery_jobs.records.ids import JobId
from celery_jobs.records.states import UNFINISHED
from celery_jobs.records.tables import idempotency_keys, jobs, queues, status_in


def unfinished(connection: Connection) -> list[JobId]:
    """The jobs that may still run; not those that are deleted already."""
    query = select(jobs.c.id).where(status_in(*sorted(UNFINISHED)), jobs.c.deleted_at.is_(None))
    return [JobId(row.id) for row in connection.execute(query)]


def empty(connection: Connection) -> None:
    """Remove every job, and take back what was set for queues at run time; only while no job runs."""
    for table in (idempotency_keys, jobs):
        connection.execute(delete(table))
    connection.execute(update(queues).values(run_limit=null(), run_limit_set=false(), paused=false()))
