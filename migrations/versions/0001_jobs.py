"""The tables of the jobs API."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from celery_jobs.records.clock import UtcTime
from celery_jobs.records.text import CleanText

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FALSE = sa.text("false")


def upgrade() -> None:
    op.create_table(
        "jobs",
        *identity(),
        *what_to_run(),
        *where_it_runs(),
        *what_became_of_it(),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'canceling', 'completed', 'failed', 'canceled')",
            name=op.f("ck_jobs_status_known"),
        ),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('canceled', 'completed', 'failed'))",
            name=op.f("ck_jobs_finished_when_terminal"),
        ),
        sa.CheckConstraint(
            "dispatched_at IS NULL OR status = 'pending'", name=op.f("ck_jobs_dispatched_while_pending")
        ),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_jobs_attempt_counts")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
        sqlite_autoincrement=True,
    )
    index_jobs()
    create_idempotency_keys()
    create_queues()
    create_workers()
    create_change_counter()


def downgrade() -> None:
    for name in ("change_counter", "workers", "queues", "idempotency_keys", "jobs"):
        op.drop_table(name)


def identity() -> list[sa.Column[object]]:
    return [
        sa.Column("seq", BIG, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("kind", sa.String(8), server_default="own", nullable=False),
        sa.Column("celery_id", CleanText()),
        sa.Column("task", CleanText()),
        sa.Column("queue", CleanText()),
        sa.Column("status", sa.String(9), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("change", BIG, nullable=False),
    ]


def what_to_run() -> list[sa.Column[object]]:
    return [
        sa.Column("args", CleanText(), server_default="[]", nullable=False),
        sa.Column("kwargs", CleanText(), server_default="{}", nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tags", CleanText(), server_default="[]", nullable=False),
        sa.Column("submitted_by", CleanText()),
        sa.Column("run_at", UtcTime()),
        sa.Column("expires_at", UtcTime()),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retry_of", sa.String(26)),
        sa.Column("parent_id", CleanText()),
        sa.Column("root_id", CleanText()),
        sa.Column("extra", CleanText()),
    ]


def where_it_runs() -> list[sa.Column[object]]:
    return [
        sa.Column("dispatched_at", UtcTime()),
        sa.Column("published_at", UtcTime()),
        sa.Column("publications", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker", CleanText()),
        sa.Column("worker_incarnation", sa.String(32)),
        sa.Column("worker_pid", sa.Integer()),
        sa.Column("claim_token", sa.String(32)),
        sa.Column("interruptible", sa.Boolean()),
        sa.Column("retry_on_worker_lost", sa.Boolean(), server_default=FALSE, nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default="3", nullable=False),
    ]


def what_became_of_it() -> list[sa.Column[object]]:
    return [
        sa.Column("submitted_at", UtcTime(), nullable=False),
        sa.Column("started_at", UtcTime()),
        sa.Column("finished_at", UtcTime()),
        sa.Column("requeued_at", UtcTime()),
        sa.Column("canceling_at", UtcTime()),
        sa.Column("cancel_requested_at", UtcTime()),
        sa.Column("cancel_mode", sa.String(9)),
        sa.Column("deleted_at", UtcTime()),
        sa.Column("error", CleanText()),
        sa.Column("error_traceback", CleanText()),
        sa.Column("result", CleanText()),
        sa.Column("artifact_id", sa.String(26)),
        sa.Column("progress_seq", sa.Integer(), server_default="0", nullable=False),
        sa.Column("progress", CleanText()),
    ]


def index_jobs() -> None:
    index_some("active", "queue", "status", where=ACTIVE)
    index_some("deleted", "deleted_at", where="deleted_at IS NOT NULL")
    index_some("expiring", "status", "expires_at", where="expires_at IS NOT NULL")
    index_some(
        "waiting", "queue", sa.text("priority DESC"), "seq", where="status = 'pending' AND dispatched_at IS NULL"
    )
    op.create_index("ix_jobs_change", "jobs", ["change"])
    op.create_index("ix_jobs_status_seq", "jobs", ["status", "seq"])


ACTIVE = "status IN ('running', 'canceling') OR (status = 'pending' AND dispatched_at IS NOT NULL)"


def index_some(name: str, *columns: str | sa.TextClause, where: str) -> None:
    op.create_index(
        f"ix_jobs_{name}", "jobs", list(columns), postgresql_where=sa.text(where), sqlite_where=sa.text(where)
    )


def create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", CleanText(), nullable=False),
        sa.Column("key", CleanText(), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(26), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_expires_at"), "idempotency_keys", ["expires_at"])
    op.create_index(op.f("ix_idempotency_keys_job_id"), "idempotency_keys", ["job_id"])


def create_queues() -> None:
    op.create_table(
        "queues",
        sa.Column("name", CleanText(), nullable=False),
        sa.Column("start_limit", sa.Integer()),
        sa.Column("run_limit", sa.Integer()),
        sa.Column("run_limit_set", sa.Boolean(), server_default=FALSE, nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=FALSE, nullable=False),
        sa.CheckConstraint("start_limit >= 1", name=op.f("ck_queues_start_limit_positive")),
        sa.CheckConstraint("run_limit >= 1", name=op.f("ck_queues_run_limit_positive")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_queues")),
    )


def create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("incarnation", sa.String(32), nullable=False),
        sa.Column("name", CleanText(), nullable=False),
        sa.Column("kind", sa.String(8), server_default="own", nullable=False),
        sa.Column("host", CleanText()),
        sa.Column("pid", sa.Integer()),
        sa.Column("pool", CleanText()),
        sa.Column("slots", sa.Integer(), server_default="1", nullable=False),
        sa.Column("queues", CleanText(), server_default="[]", nullable=False),
        sa.Column("tasks", CleanText(), server_default="[]", nullable=False),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("seen_at", UtcTime(), nullable=False),
        sa.Column("lease_until", UtcTime(), nullable=False),
        sa.Column("stopping", sa.Boolean(), server_default=FALSE, nullable=False),
        sa.PrimaryKeyConstraint("incarnation", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_lease_until"), "workers", ["lease_until"])
    op.create_index(op.f("ix_workers_name"), "workers", ["name"])


def create_change_counter() -> None:
    counter = op.create_table(
        "change_counter",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("value", BIG, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_change_counter")),
    )
    # SQLite counts its writes in this one row (records/changes.py); PostgreSQL leaves it alone
    op.bulk_insert(counter, [{"id": 1, "value": 0}])
