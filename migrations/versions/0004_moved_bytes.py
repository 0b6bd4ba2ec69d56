"""Engines count the bytes that pushes moved."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the counter; pushes before it are not counted."""
    op.add_column("engines", sa.Column("moved_bytes", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Take the counter away again."""
    op.drop_column("engines", "moved_bytes")
