"""Indexes that find what is old enough to be forgotten."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_jobs_finished": ("finished_at", "finished_at IS NOT NULL AND deleted_at IS NULL"),
    "ix_jobs_deleted_own": ("deleted_at", "deleted_at IS NOT NULL AND kind = 'own' AND celery_id IS NULL"),
}


def upgrade() -> None:
    for name, (column, where) in INDEXES.items():
        op.create_index(name, "jobs", [column], postgresql_where=sa.text(where), sqlite_where=sa.text(where))


def downgrade() -> None:
    for name in INDEXES:
        op.drop_index(name, "jobs")
