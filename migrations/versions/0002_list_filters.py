"""Indexes for the filters of the list."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_jobs_task_seq", "jobs", ["task", "seq"])
    op.create_index("ix_jobs_submitted_at", "jobs", ["submitted_at"])


def downgrade() -> None:
    op.drop_index("ix_jobs_submitted_at", "jobs")
    op.drop_index("ix_jobs_task_seq", "jobs")
