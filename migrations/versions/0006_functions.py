"""Jobs that are functions and no tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("function", sa.Text()))


def downgrade() -> None:
    op.drop_column("jobs", "function")
