"""Every read of jobs: one, many, pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Boolean, Connection, Select, func, literal, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from celery_jobs.records.errors import JobNotFound
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobFilter, JobRecord, JobResult, StreamRow
from celery_jobs.records.states import JobStatus
from celery_jobs.records.tables import jobs
from celery_jobs.records.text import CleanText

_c = jobs.c
R = TypeVar("R", bound=JobRecord)
_MOST_NAMED = 500  # SQLite bounds the parameters of a statement
_WINDOW = 50_000  # a filter that no index serves looks at so many rows in some 25 ms


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
    *(_c.cancel_mode, _c.retry_of, _c.celery_id, _c.run_at, _c.expires_at, _c.parent_id, _c.root_id, _c.extra),
)
_RECORD_COLUMNS = (*_LIST_COLUMNS, _c.error_traceback)
_STREAM_MORE = (_c.version, _c.progress_seq, _c.canceling_at, _c.requeued_at, _c.deleted_at)
STREAM_COLUMNS = (*_RECORD_COLUMNS, *_STREAM_MORE)
# for the stream of all jobs, which shows a job as the list does
LISTED_STREAM_COLUMNS = (*_LIST_COLUMNS, *_STREAM_MORE)


def record(connection: Connection, job_id: JobId, model: type[R] = JobRecord) -> R:
    """The record of a job as `model`; JobNotFound when unknown or deleted."""
    row = connection.execute(select(*_RECORD_COLUMNS).where(_c.id == job_id, _c.deleted_at.is_(None))).first()
    if row is None:
        raise JobNotFound(job_id)
    return model.of(row)


def result(connection: Connection, job_id: JobId, model: type[JobRecord] = JobRecord) -> JobResult:
    """The record and the result of a job; JobNotFound when unknown or deleted."""
    query = select(*_RECORD_COLUMNS, _c.result).where(_c.id == job_id, _c.deleted_at.is_(None))
    row = connection.execute(query).first()
    if row is None:
        raise JobNotFound(job_id)
    return JobResult(model.of(row), row.result)


class FunctionCall(NamedTuple):
    """What a job runs that is no task: the function, and its arguments as JSON."""

    function: str
    args: str
    kwargs: str
    interruptible: bool


def function_call(connection: Connection, job_id: JobId) -> FunctionCall | None:
    """What a job runs that is no task; None for one that is, or is not there."""
    row = connection.execute(select(_c.function, _c.args, _c.kwargs, _c.interruptible).where(_c.id == job_id)).first()
    return None if row is None or row.function is None else FunctionCall(*row[:3], bool(row.interruptible))


def extra(connection: Connection, job_id: JobId) -> str | None:
    """The fields of a record's own class, as JSON."""
    return connection.execute(select(_c.extra).where(_c.id == job_id)).scalar()


def statuses(connection: Connection, ids: Collection[JobId]) -> dict[JobId, JobStatus]:
    """Where these jobs are; unknown and deleted ones are absent."""
    found: dict[JobId, JobStatus] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _MOST_NAMED):
        chosen = _c.id.in_(wanted[start : start + _MOST_NAMED])
        rows = connection.execute(select(_c.id, _c.status).where(chosen, _c.deleted_at.is_(None)))
        found.update((JobId(row.id), JobStatus(row.status)) for row in rows)
    return found


def stream_rows(
    connection: Connection, ids: Collection[JobId], model: type[JobRecord] = JobRecord
) -> dict[JobId, StreamRow]:
    """The rows of `ids` for streams; unknown ones are absent, deleted ones say so."""
    found: dict[JobId, StreamRow] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _MOST_NAMED):
        query = select(*STREAM_COLUMNS).where(_c.id.in_(wanted[start : start + _MOST_NAMED]))
        found.update((JobId(row.id), StreamRow.of(row, model)) for row in connection.execute(query))
    return found


def page(
    connection: Connection,
    chosen: JobFilter,
    limit: int,
    below_seq: int | None,
    model: type[R] = JobRecord,
    *,
    window: int = _WINDOW,
) -> tuple[Sequence[R], int | None]:
    """At most `limit` records, newest first, submitted before `below_seq`; and where the next page begins.

    None there means the end. With a filter a page may be short, or empty, before it: no call looks at more than
    `window` rows, so that a filter that fits few of many millions keeps nobody waiting.
    """
    query = _filtered(cast("Select[Any]", select(_c.seq, *_LIST_COLUMNS)), chosen).order_by(_c.seq.desc())
    if below_seq is not None:
        query = query.where(_c.seq < below_seq)
    lowest = 1
    if chosen != JobFilter():
        newest = connection.execute(_newest_below(below_seq)).scalar()
        lowest = 1 if newest is None else newest - window + 1
        query = query.where(_c.seq >= lowest)
    rows = connection.execute(query.limit(limit + 1)).all()  # one more tells whether this page is the last
    following = rows[limit - 1].seq if len(rows) > limit else lowest
    return [model.of(row) for row in rows[:limit]], following if following > 1 else None


def _newest_below(seq: int | None) -> Select[Any]:
    query = select(func.max(_c.seq))
    return query if seq is None else query.where(_c.seq < seq)


def _filtered(query: Select[Any], chosen: JobFilter) -> Select[Any]:
    query = query.where(_c.deleted_at.is_(None))
    if chosen.status is not None:
        query = query.where(_c.status == str(chosen.status))
    if chosen.task is not None:
        query = query.where(_c.task == chosen.task)
    if chosen.queue is not None:
        query = query.where(_c.queue == chosen.queue)
    for tag in chosen.tags:
        query = query.where(_c.tags != "[]", has_tag(_c.tags, literal(tag, CleanText())))
    if chosen.submitted_after is not None:
        query = query.where(_c.submitted_at > chosen.submitted_after)
    if chosen.submitted_before is not None:
        query = query.where(_c.submitted_at < chosen.submitted_before)
    return query
