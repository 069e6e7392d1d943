"""Every read of jobs: one, many, pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

from sqlalchemy import Boolean, Connection, Select, literal, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from celery_jobs.records.errors import JobNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobFilter, JobRecord, JobResult, StreamRow
from celery_jobs.records.tables import jobs
from celery_jobs.records.text import CleanText

_c = jobs.c


class has_tag(FunctionElement[bool]):
    """Whether a JSON list of texts, the first argument, holds the second."""

    type = Boolean()
    inherit_cache = True


@compiles(has_tag, "sqlite")
def _has_tag_sqlite(element: has_tag, compiler: Any, **kw: Any) -> str:
    tags, tag = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"EXISTS (SELECT 1 FROM json_each({tags}) WHERE value = {tag})"


@compiles(has_tag)
def _has_tag_default(element: has_tag, compiler: Any, **kw: Any) -> str:
    tags, tag = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{tag} IN (SELECT json_array_elements_text(({tags})::json))"


_LIST_COLUMNS = (
    *(_c.id, _c.status, _c.submitted_at, _c.started_at, _c.finished_at, _c.error, _c.artifact_id, _c.task, _c.queue),
    *(_c.worker, _c.attempt, _c.progress, _c.priority, _c.tags, _c.submitted_by, _c.cancel_requested_at),
    *(_c.cancel_mode, _c.retry_of, _c.celery_id, _c.run_at, _c.expires_at, _c.parent_id, _c.root_id),
)
_RECORD_COLUMNS = (*_LIST_COLUMNS, _c.error_traceback)
STREAM_COLUMNS = (
    *_RECORD_COLUMNS,
    *(_c.version, _c.progress_seq, _c.canceling_at, _c.requeued_at, _c.deleted_at),
)


def record(connection: Connection, job_id: JobId) -> JobRecord:
    """The record of a job; JobNotFound when unknown or deleted."""
    row = connection.execute(select(*_RECORD_COLUMNS).where(_c.id == job_id, _c.deleted_at.is_(None))).first()
    if row is None:
        raise JobNotFound(job_id)
    return JobRecord.of(row)


def result(connection: Connection, job_id: JobId) -> JobResult:
    """The record and the result of a job; JobNotFound when unknown or deleted."""
    query = select(*_RECORD_COLUMNS, _c.result).where(_c.id == job_id, _c.deleted_at.is_(None))
    row = connection.execute(query).first()
    if row is None:
        raise JobNotFound(job_id)
    return JobResult(JobRecord.of(row), row.result)


def stream_rows(connection: Connection, ids: Collection[JobId]) -> dict[JobId, StreamRow]:
    """The rows of `ids` for streams; unknown ones are absent, deleted ones say so."""
    found: dict[JobId, StreamRow] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), 500):  # SQLite bounds the parameters of a statement
        query = select(*STREAM_COLUMNS).where(_c.id.in_(wanted[start : start + 500]))
        found.update((JobId(row.id), StreamRow.of(row)) for row in connection.execute(query))
    return found


def page(
    connection: Connection, chosen: JobFilter, limit: int, below_seq: int | None
) -> tuple[Sequence[JobRecord], int | None]:
    """At most `limit` records, newest first, submitted before `below_seq`; and where the next page begins."""
    query = _filtered(cast("Select[Any]", select(_c.seq, *_LIST_COLUMNS)), chosen).order_by(_c.seq.desc()).limit(limit)
    if below_seq is not None:
        query = query.where(_c.seq < below_seq)
    rows = connection.execute(query).all()
    following = rows[-1].seq if len(rows) == limit else None
    return [JobRecord.of(row) for row in rows], following


def _filtered(query: Select[Any], chosen: JobFilter) -> Select[Any]:
    query = query.where(_c.deleted_at.is_(None))
    if chosen.status is not None:
        query = query.where(_c.status == str(chosen.status))
    if chosen.task is not None:
        query = query.where(_c.task == chosen.task)
    if chosen.queue is not None:
        query = query.where(_c.queue == chosen.queue)
    if chosen.tag is not None:
        query = query.where(_c.tags != "[]", has_tag(_c.tags, literal(chosen.tag, CleanText())))
    if chosen.submitted_after is not None:
        query = query.where(_c.submitted_at > chosen.submitted_after)
    if chosen.submitted_before is not None:
        query = query.where(_c.submitted_at < chosen.submitted_before)
    return query
