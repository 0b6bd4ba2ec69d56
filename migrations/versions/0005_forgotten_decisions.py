"""Decisions are forgotten when their time is over; how many of each outcome there were is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the counts; nothing is forgotten yet."""
    op.create_table(
        "forgotten_decisions",
        sa.Column("outcome", sa.String(24), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("outcome", name="pk_forgotten_decisions"),
    )


def downgrade() -> None:
    """Take the counts away: an older moeplan counts the decisions that are there."""
    op.drop_table("forgotten_decisions")
