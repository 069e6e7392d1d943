"""Jobs that others sent straight to the broker: the first worker that sees the message makes the record (section 1)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from celery_jobs.records.changes import change_mark
from celery_jobs.records.clock import now
from celery_jobs.records.ids import JobId
from celery_jobs.records.queues import ensure
from celery_jobs.records.states import JobStatus
from celery_jobs.records.tables import jobs


@dataclass(frozen=True, slots=True)
class Adopted:
    """What a message says about the job that it is."""

    id: JobId
    celery_id: str
    task: str
    queue: str
    args: str
    kwargs: str
    retries: int
    parent_id: str | None
    root_id: str | None
    retry_on_worker_lost: bool
    max_attempts: int


def adopt(connection: Connection, message: Adopted) -> int:
    """Record the job as handed over unless it is known; the attempt that a claim must name."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    values = asdict(message) | {"celery_id": None if message.celery_id == message.id else message.celery_id}
    statement = insert(jobs).values(
        **values,
        status=str(JobStatus.pending),
        submitted_at=now(),
        dispatched_at=now(),
        published_at=now(),
        publications=1,
        change=change_mark(),
        submitted_change=change_mark(),
    )
    connection.execute(statement.on_conflict_do_nothing(index_elements=["id"]))
    if message.queue:
        ensure(connection, [message.queue])
    return connection.execute(select(jobs.c.attempt).where(jobs.c.id == message.id)).scalar_one()
