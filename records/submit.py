"""Submitting: a record and its idempotency key in one transaction, many jobs a commit (contract, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ARRAY, Connection, Float, Insert, bindparam, delete, func, literal, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from celery_jobs.records.changes import change_mark
from celery_jobs.records.clock import from_now, now
from celery_jobs.records.errors import IdempotencyKeyReused, RemoteJobNotFound
from celery_jobs.records.ids import JobId, new_job_id
from celery_jobs.records.states import JobKind, JobStatus
from celery_jobs.records.tables import idempotency_keys, jobs, remote_jobs
from celery_jobs.records.text import clean_list

CALL: Final = "celery_jobs.call"  # the task that runs a function which is no task
IN_MEMORY: Final = "in memory"  # where such a function is known to the submitting process alone


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's key for one path, and the digest of the request that came with it."""

    scope: str
    key: str
    fingerprint: str
    keep_seconds: float


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a submit asks for; `args` and `kwargs` are JSON texts.

    `function`, `module:name`, runs in place of a task; `extra` holds the fields of a record subclass, as JSON.
    Submitted in a room it names that and its job; where remote workers serve the job, its registration, and no queue.
    """

    task: str
    queue: str | None
    args: str = "[]"
    kwargs: str = "{}"
    id: JobId = field(default_factory=new_job_id)
    priority: int = 0
    tags: Sequence[str] = ()
    submitted_by: str | None = None
    run_at: datetime | None = None
    expires_in_seconds: float | None = None
    interruptible: bool | None = None
    retry_on_worker_lost: bool = False
    max_attempts: int = 3
    retry_of: JobId | None = None
    room_id: str | None = None
    job_name: str | None = None
    registration: str | None = None
    function: str | None = None
    extra: str | None = None
    idempotency: IdempotencyKey | None = None

    @property
    def kind(self) -> JobKind:
        """Who will run it."""
        return JobKind.own if self.registration is None else JobKind.remote


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job that answers a submit; `replayed` when the same key brought it before."""

    job_id: JobId
    replayed: bool = False


# a database cannot count to a time that no calendar has
_LONGEST_SECONDS = 100 * 365 * 86400.0

# SQLite runs it once a job, inside the process; over a network that would be a round trip or a plan a job
_INSERT_EACH = (
    sqlite.insert(jobs)
    .values(
        submitted_at=now(),
        change=change_mark(),
        submitted_change=change_mark(),
        status=str(JobStatus.pending),
        expires_at=from_now(bindparam("expires_in_seconds")),
    )
    .on_conflict_do_nothing(index_elements=["id"])  # a repeat after a commit whose answer was lost
)


def _insert_arrays() -> Insert:
    """PostgreSQL: the whole batch as one statement, an array a column; unnest keeps the order, and so does seq."""
    columns = {name: jobs.c[name].type for name in _COLUMNS} | {"expires_in_seconds": Float()}
    arrays = [bindparam(f"all_{name}", type_=ARRAY(kind)) for name, kind in columns.items()]
    batch = func.unnest(*arrays).table_valued(*columns, name="batch").render_derived()
    made = {
        "expires_at": from_now(batch.c.expires_in_seconds),
        "submitted_at": now(),
        "change": change_mark(),
        "submitted_change": change_mark(),
        "status": literal(str(JobStatus.pending)),
    }
    rows = select(*(batch.c[name] for name in _COLUMNS), *made.values())
    return postgresql.insert(jobs).from_select([*_COLUMNS, *made], rows).on_conflict_do_nothing(index_elements=["id"])


_COLUMNS = (
    *("id", "kind", "task", "queue", "args", "kwargs", "priority", "tags", "submitted_by", "run_at"),
    *("interruptible", "retry_on_worker_lost", "max_attempts", "retry_of", "room_id", "job_name", "registration"),
    *("function", "extra"),
)
_INSERT_ARRAYS = _insert_arrays()


def insert_fresh(connection: Connection, batch: Sequence[NewJob]) -> list[Submitted]:
    """Insert jobs without idempotency keys, in their order: one statement. Safe to repeat with the same ids."""
    rows = [_values(job) for job in batch]
    if connection.dialect.name == "sqlite":
        connection.execute(_INSERT_EACH, rows)
    else:
        connection.execute(_INSERT_ARRAYS, {f"all_{name}": [row[name] for row in rows] for name in rows[0]})
    return [Submitted(job.id) for job in batch]


Outcome = Submitted | IdempotencyKeyReused | RemoteJobNotFound


def is_plain(job: NewJob) -> bool:
    """Whether `insert_fresh` may take it: no key, and no registration that might be removed meanwhile."""
    return job.idempotency is None and job.registration is None


def insert_batch(connection: Connection, batch: Sequence[NewJob]) -> list[Outcome]:
    """Insert the jobs in their order; one outcome a job, in the same order. Safe to repeat with the same ids."""
    answers: dict[int, Outcome] = {}
    keyed = [index for index, job in enumerate(batch) if job.idempotency is not None]
    # two batches that take the same keys in another order would deadlock
    for index in sorted(keyed, key=lambda index: _key_order(batch[index])):
        earlier = _take_key(connection, batch[index])
        if earlier is not None:
            answers[index] = earlier
    kept = _kept_registrations(connection, batch)
    for index, job in enumerate(batch):
        if index not in answers and job.registration is not None and job.registration not in kept:
            answers[index] = RemoteJobNotFound(str(job.job_name))
            _give_key_back(connection, job)
    fresh = [job for index, job in enumerate(batch) if index not in answers]
    if fresh:
        insert_fresh(connection, fresh)
    return [answers.get(index) or Submitted(job.id) for index, job in enumerate(batch)]


def _kept_registrations(connection: Connection, batch: Sequence[NewJob]) -> set[str]:
    """Those that are still registered, and stay so until this transaction has committed."""
    named = sorted({job.registration for job in batch if job.registration is not None})
    if not named:
        return set()
    query = select(remote_jobs.c.id).where(remote_jobs.c.id.in_(named), remote_jobs.c.removed_at.is_(None))
    return set(connection.execute(query.order_by(remote_jobs.c.id).with_for_update(read=True)).scalars())


def _give_key_back(connection: Connection, job: NewJob) -> None:
    if job.idempotency is not None:
        connection.execute(delete(idempotency_keys).where(_k.job_id == job.id))


def _key_order(job: NewJob) -> tuple[str, str]:
    assert job.idempotency is not None
    return job.idempotency.scope, job.idempotency.key


def _values(job: NewJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": str(job.kind),
        "task": job.task,
        "queue": job.queue,
        "args": job.args,
        "kwargs": job.kwargs,
        "priority": job.priority,
        "tags": clean_list(job.tags) if job.tags else "[]",
        "submitted_by": job.submitted_by,
        "run_at": job.run_at,
        "expires_in_seconds": _bounded(job.expires_in_seconds),
        "interruptible": job.interruptible,
        "retry_on_worker_lost": job.retry_on_worker_lost,
        "max_attempts": job.max_attempts,
        "retry_of": job.retry_of,
        "room_id": job.room_id,
        "job_name": job.job_name,
        "registration": job.registration,
        "function": job.function,
        "extra": job.extra,
    }


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, _LONGEST_SECONDS)


def _take_key(connection: Connection, job: NewJob) -> Submitted | IdempotencyKeyReused | None:
    """None when the key is now this job's; otherwise what an earlier submit with it means for this one."""
    asked = job.idempotency
    assert asked is not None
    while not _key_was_free(connection, asked, job.id):
        held = connection.execute(_HELD, {"in_scope": asked.scope, "asked": asked.key}).first()
        if held is None:
            continue  # its job was deleted between the two statements
        if held.job_id == job.id:
            return None  # a repeat after a commit whose answer was lost
        if held.fingerprint != asked.fingerprint:
            return IdempotencyKeyReused(asked.key)
        return Submitted(JobId(held.job_id), replayed=True)
    return None


_k = idempotency_keys.c
_HELD = select(_k.job_id, _k.fingerprint).where(_k.scope == bindparam("in_scope"), _k.key == bindparam("asked"))


def earlier(connection: Connection, asked: IdempotencyKey) -> JobId | None:
    """The job that the same request with this key brought before; None where it brought none."""
    held = connection.execute(_HELD, {"in_scope": asked.scope, "asked": asked.key}).first()
    return JobId(held.job_id) if held is not None and held.fingerprint == asked.fingerprint else None


def _key_was_free(connection: Connection, asked: IdempotencyKey, job_id: JobId) -> bool:
    """Take the key unless it is held; waits for a transaction that is taking it at this moment."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    values = {"fingerprint": asked.fingerprint, "job_id": job_id, "expires_at": from_now(asked.keep_seconds)}
    statement = (
        insert(idempotency_keys)
        .values(scope=asked.scope, key=asked.key, **values)
        .on_conflict_do_update(index_elements=["scope", "key"], set_=values, where=_k.expires_at <= now())
    )
    return connection.execute(statement.returning(_k.job_id)).first() is not None


def forget_keys(connection: Connection, most: int = 500) -> int:
    """Remove idempotency keys that are no longer remembered; how many."""
    # a key that a submit is taking over at this moment is left to it
    old = select(_k.scope, _k.key).where(_k.expires_at <= now()).limit(most).with_for_update(skip_locked=True)
    keys = [(row.scope, row.key) for row in connection.execute(old)]
    if keys:
        connection.execute(delete(idempotency_keys).where(tuple_(_k.scope, _k.key).in_(keys)))
    return len(keys)
