"""The tables. Alembic's migrations make them; a test compares the two.

JSON is kept as text: PostgreSQL's jsonb refuses an escaped NUL, and nothing here is searched by its content.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    literal_column,
    text,
)

from celery_jobs.records.clock import UtcTime
from celery_jobs.records.states import TERMINAL, JobStatus
from celery_jobs.records.text import CleanText

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

_BIG = BigInteger().with_variant(Integer, "sqlite")
_TERMINAL_SQL = ", ".join(f"'{status}'" for status in sorted(TERMINAL))
_STATUSES_SQL = ", ".join(f"'{status}'" for status in JobStatus)
_WAITING_SQL = text("status = 'pending' AND dispatched_at IS NULL")
_ACTIVE_SQL = text("status IN ('running', 'canceling') OR (status = 'pending' AND dispatched_at IS NOT NULL)")
_ENDED_SQL = text("finished_at IS NOT NULL AND deleted_at IS NULL")
_DELETED_OWN_SQL = text("deleted_at IS NOT NULL AND kind = 'own' AND celery_id IS NULL")
_CLAIMABLE_SQL = text("status = 'pending' AND dispatched_at IS NULL AND registration IS NOT NULL")
_HELD_SQL = text("kind = 'remote' AND worker_incarnation IS NOT NULL")
_UNFINISHED_REMOTE_SQL = text("registration IS NOT NULL AND finished_at IS NULL")
_IN_A_ROOM_SQL = text("room_id IS NOT NULL")
_REMOTE_SQL = text("kind = 'remote'")

jobs = Table(
    "jobs",
    metadata,
    # orders lists, cursors and first-in-first-out: a shared commit has one now(), foreign UUIDs are no clock
    Column("seq", _BIG, primary_key=True, autoincrement=True),
    Column("id", String(26), nullable=False, unique=True),
    Column("kind", String(8), nullable=False, server_default="own"),
    Column("celery_id", CleanText),  # the task id as Celery spells it, where it is not the id itself
    Column("task", CleanText),
    Column("queue", CleanText),
    Column("status", String(9), nullable=False),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("version", Integer, nullable=False, server_default="0"),  # grows with every write
    Column("change", _BIG, nullable=False),  # see records/changes.py
    # --- what to run
    Column("args", CleanText, nullable=False, server_default="[]"),
    Column("kwargs", CleanText, nullable=False, server_default="{}"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("tags", CleanText, nullable=False, server_default="[]"),
    Column("submitted_by", CleanText),
    Column("run_at", UtcTime),
    Column("expires_at", UtcTime),
    Column("retries", Integer, nullable=False, server_default="0"),  # Celery's count, sent with the message
    Column("retry_of", String(26)),
    Column("parent_id", CleanText),
    Column("root_id", CleanText),
    Column("extra", CleanText),  # json: the fields that a subclass of JobRecord adds
    # what runs where it is no task: `module:name`, or IN_MEMORY of the process that submitted it; the message then
    # names the task CALL, and `task` is what people see
    Column("function", CleanText),
    # --- of a task that was submitted in a room: where, the full name of its job, and the registration that remote
    # workers serve (none where Celery does)
    Column("room_id", CleanText),
    Column("job_name", CleanText),
    Column("registration", String(26)),
    # --- where it runs
    Column("dispatched_at", UtcTime),  # handed to the broker for the coming attempt, or claimed by a remote worker
    Column("published_at", UtcTime),  # the last publication of that
    Column("publications", Integer, nullable=False, server_default="0"),
    Column("worker", CleanText),
    Column("worker_incarnation", String(32)),
    Column("worker_pid", Integer),
    Column("claim_token", String(32)),
    Column("held_by", CleanText),  # the identity whose remote worker holds it, or was the last to
    Column("interruptible", Boolean),  # a coroutine; null while no process that knows the task has said so
    Column("retry_on_worker_lost", Boolean, nullable=False, server_default=text("false")),
    Column("max_attempts", Integer, nullable=False, server_default="3"),
    # --- what became of it
    Column("submitted_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("finished_at", UtcTime),
    Column("requeued_at", UtcTime),  # this attempt ended in a retry or a loss and the job waits again
    Column("canceling_at", UtcTime),
    Column("cancel_requested_at", UtcTime),
    Column("cancel_mode", String(9)),
    Column("deleted_at", UtcTime),  # hidden from every answer; the row stays to stop late messages
    Column("error", CleanText),
    Column("error_traceback", CleanText),
    Column("result", CleanText),
    Column("artifact_id", String(26)),
    Column("progress_seq", Integer, nullable=False, server_default="0"),
    Column("progress", CleanText),  # json: current, total, message
    # --- the change that brought each status of the record: times do not order commits (records/changes.py)
    Column("submitted_change", _BIG),
    Column("started_change", _BIG),  # of the present attempt
    Column("requeued_change", _BIG),
    Column("canceling_change", _BIG),
    Column("finished_change", _BIG),
    CheckConstraint(f"status IN ({_STATUSES_SQL})", name="status_known"),
    CheckConstraint(f"(finished_at IS NOT NULL) = (status IN ({_TERMINAL_SQL}))", name="finished_when_terminal"),
    CheckConstraint("dispatched_at IS NULL OR status = 'pending'", name="dispatched_while_pending"),
    CheckConstraint("attempt >= 0", name="attempt_counts"),
    Index("ix_jobs_change", "change"),
    Index("ix_jobs_status_seq", "status", "seq"),
    Index("ix_jobs_task_seq", "task", "seq"),
    Index("ix_jobs_submitted_at", "submitted_at"),
    Index(
        "ix_jobs_waiting",
        "queue",
        text("priority DESC"),
        "seq",
        postgresql_where=_WAITING_SQL,
        sqlite_where=_WAITING_SQL,
    ),
    Index("ix_jobs_active", "queue", "status", postgresql_where=_ACTIVE_SQL, sqlite_where=_ACTIVE_SQL),
    Index(
        "ix_jobs_deleted",
        "deleted_at",
        postgresql_where=text("deleted_at IS NOT NULL"),
        sqlite_where=text("deleted_at IS NOT NULL"),
    ),
    # ordered by age, for those who forget: records that ended, and hidden rows that only our own messages name
    Index("ix_jobs_finished", "finished_at", postgresql_where=_ENDED_SQL, sqlite_where=_ENDED_SQL),
    Index("ix_jobs_deleted_own", "deleted_at", postgresql_where=_DELETED_OWN_SQL, sqlite_where=_DELETED_OWN_SQL),
    # remote tasks: what may be claimed, what keeps its job, what a worker holds, what a room shows
    Index("ix_jobs_claimable", "registration", "seq", postgresql_where=_CLAIMABLE_SQL, sqlite_where=_CLAIMABLE_SQL),
    Index(
        "ix_jobs_unfinished_remote",
        "registration",
        postgresql_where=_UNFINISHED_REMOTE_SQL,
        sqlite_where=_UNFINISHED_REMOTE_SQL,
    ),
    Index("ix_jobs_held", "worker_incarnation", postgresql_where=_HELD_SQL, sqlite_where=_HELD_SQL),
    Index("ix_jobs_room", "room_id", "seq", postgresql_where=_IN_A_ROOM_SQL, sqlite_where=_IN_A_ROOM_SQL),
    Index(
        "ix_jobs_expiring",
        "status",
        "expires_at",
        postgresql_where=text("expires_at IS NOT NULL"),
        sqlite_where=text("expires_at IS NOT NULL"),
    ),
    sqlite_autoincrement=True,
)


def status_in(*statuses: JobStatus) -> ColumnElement[bool]:
    """Jobs in one of these states; literal, since a bound parameter would hide that a partial index fits."""
    if len(statuses) == 1:
        return jobs.c.status == literal_column(f"'{statuses[0]}'")
    return jobs.c.status.in_([literal_column(f"'{status}'") for status in statuses])


idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("scope", CleanText, primary_key=True),  # caller and path
    Column("key", CleanText, primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("job_id", String(26), nullable=False, index=True),  # no foreign key: written before its job, removed with it
    Column("expires_at", UtcTime, nullable=False, index=True),
)

queues = Table(
    "queues",
    metadata,
    Column("name", CleanText, primary_key=True),
    Column("start_limit", Integer),  # from settings
    Column("run_limit", Integer),  # set at run time; wins where run_limit_set
    Column("run_limit_set", Boolean, nullable=False, server_default=text("false")),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("start_limit >= 1", name="start_limit_positive"),
    CheckConstraint("run_limit >= 1", name="run_limit_positive"),
)

workers = Table(
    "workers",
    metadata,
    Column("incarnation", String(32), primary_key=True),  # a restart under the same name is another worker
    Column("name", CleanText, nullable=False, index=True),
    Column("kind", String(8), nullable=False, server_default="own"),
    Column("host", CleanText),
    Column("pid", Integer),
    Column("pool", CleanText),
    Column("slots", Integer, nullable=False, server_default="1"),
    Column("queues", CleanText, nullable=False, server_default="[]"),
    Column("tasks", CleanText, nullable=False, server_default="[]"),
    Column("started_at", UtcTime, nullable=False),
    Column("seen_at", UtcTime, nullable=False),
    Column("lease_until", UtcTime, nullable=False),  # no index: each renewal would write it anew,
    Column("stopping", Boolean, nullable=False, server_default=text("false")),
    Column("owner", CleanText),  # of a remote worker: the identity that it is, or is one of
    # a remote worker's name is its id; two rows of one id would be two workers in one
    Index("uq_workers_remote", "name", unique=True, postgresql_where=_REMOTE_SQL, sqlite_where=_REMOTE_SQL),
)

# what remote workers have registered; one that was removed stays for its tasks, and its name is free again
remote_jobs = Table(
    "remote_jobs",
    metadata,
    Column("id", String(26), primary_key=True),
    Column("room_id", CleanText, nullable=False),
    Column("category", CleanText, nullable=False),
    Column("name", CleanText, nullable=False),
    Column("schema", CleanText, nullable=False),  # JSON with sorted keys, so that equal schemas are equal texts
    Column("created_at", UtcTime, nullable=False),
    Column("removed_at", UtcTime),
    Index(
        "uq_remote_jobs_name",
        *("room_id", "category", "name"),
        unique=True,
        postgresql_where=text("removed_at IS NULL"),
        sqlite_where=text("removed_at IS NULL"),
    ),
)

remote_job_workers = Table(
    "remote_job_workers",
    metadata,
    Column("registration", String(26), primary_key=True),
    Column("worker_incarnation", String(32), primary_key=True, index=True),
)

# SQLite has no transaction ids that order commits, so its single writer counts (records/changes.py)
change_counter = Table(
    "change_counter",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("value", _BIG, nullable=False),
)
