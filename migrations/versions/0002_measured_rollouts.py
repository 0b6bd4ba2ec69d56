"""Rollouts measure what they brought in, and say what the engine runs; engines count their failures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# A migration stays what it was on the day it was released, so it uses no type of the application.
DOCUMENT = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    """Add columns; the defaults are for rows that are there already, which measured nothing."""
    for column in (
        sa.Column("taken_back", DOCUMENT, nullable=True),
        sa.Column("runs_hash", sa.String(length=64), nullable=True),
        sa.Column("measure_seconds", sa.Float(), nullable=False, server_default="0"),
        sa.Column("roll_back_margin", sa.Float(), nullable=False, server_default="0.05"),
        sa.Column("predicted", DOCUMENT, nullable=True),
        sa.Column("measured_before", DOCUMENT, nullable=True),
        sa.Column("verdict", DOCUMENT, nullable=True),
    ):
        op.add_column("rollouts", column)
    op.create_index(op.f("ix_rollouts_job_id"), "rollouts", ["job_id"], unique=False)
    op.add_column("engines", sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Take the columns away again."""
    op.drop_column("engines", "failures")
    op.drop_index(op.f("ix_rollouts_job_id"), "rollouts")
    for column in (
        "verdict", "measured_before", "predicted", "roll_back_margin", "measure_seconds", "runs_hash", "taken_back",
    ):  # fmt: skip
        op.drop_column("rollouts", column)
