"""Rooms, registered jobs and remote workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from celery_jobs.records.clock import UtcTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

JOB_COLUMNS = {"room_id": sa.Text(), "job_name": sa.Text(), "registration": sa.String(26), "held_by": sa.Text()}
JOB_INDEXES = {
    "ix_jobs_claimable": (
        ["registration", "seq"],
        "status = 'pending' AND dispatched_at IS NULL AND registration IS NOT NULL",
    ),
    "ix_jobs_unfinished_remote": (["registration"], "registration IS NOT NULL AND finished_at IS NULL"),
    "ix_jobs_held": (["worker_incarnation"], "kind = 'remote' AND worker_incarnation IS NOT NULL"),
    "ix_jobs_room": (["room_id", "seq"], "room_id IS NOT NULL"),
}


def upgrade() -> None:
    for name, kind in JOB_COLUMNS.items():
        op.add_column("jobs", sa.Column(name, kind))
    for name, (columns, where) in JOB_INDEXES.items():
        op.create_index(name, "jobs", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
    op.add_column("workers", sa.Column("owner", sa.Text()))
    op.drop_index("ix_workers_lease_until", "workers")  # each renewal would write it anew
    _unique("uq_workers_remote", "workers", ["name"], "kind = 'remote'")
    op.create_table(
        "remote_jobs",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("room_id", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("schema", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("removed_at", UtcTime()),
        sa.PrimaryKeyConstraint("id", name="pk_remote_jobs"),
    )
    _unique("uq_remote_jobs_name", "remote_jobs", ["room_id", "category", "name"], "removed_at IS NULL")
    op.create_table(
        "remote_job_workers",
        sa.Column("registration", sa.String(26), nullable=False),
        sa.Column("worker_incarnation", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("registration", "worker_incarnation", name="pk_remote_job_workers"),
    )
    op.create_index("ix_remote_job_workers_worker_incarnation", "remote_job_workers", ["worker_incarnation"])


def downgrade() -> None:
    op.drop_table("remote_job_workers")
    op.drop_table("remote_jobs")
    op.drop_index("uq_workers_remote", "workers")
    op.drop_column("workers", "owner")
    op.create_index("ix_workers_lease_until", "workers", ["lease_until"])
    for name in JOB_INDEXES:
        op.drop_index(name, "jobs")
    for name in JOB_COLUMNS:
        op.drop_column("jobs", name)


def _unique(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, unique=True, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
