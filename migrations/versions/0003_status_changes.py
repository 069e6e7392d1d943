"""The place of each status in the order of changes, for the stream of all jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COLUMNS = ("submitted_change", "started_change", "requeued_change", "canceling_change", "finished_change")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("jobs", sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite")))


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_column("jobs", name)
