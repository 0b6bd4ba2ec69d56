"""Schedules, their cycles and decisions, and the indexes that long lists need."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

DOCUMENT = sa.JSON().with_variant(JSONB(), "postgresql")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    # No moeplan before this one wrote a row into either table, so they are made anew.
    op.drop_table("decisions")
    op.drop_table("schedules")
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("engine_id", sa.String(length=40), nullable=False),
        sa.Column("cron", sa.String(length=200), nullable=True),
        sa.Column("interval_s", sa.Float(), nullable=True),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("starts_at", MOMENT, nullable=False),
        sa.Column("mode", sa.String(length=24), nullable=False),
        sa.Column("capture", DOCUMENT, nullable=False),
        sa.Column("planning", DOCUMENT, nullable=False),
        sa.Column("gates", DOCUMENT, nullable=False),
        sa.Column("rollout", DOCUMENT, nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("next_due_at", MOMENT, nullable=True),
        sa.Column("last_tick_at", MOMENT, nullable=True),
        sa.Column("last_success_at", MOMENT, nullable=True),
        sa.Column("cycles", sa.Integer(), nullable=False),
        sa.Column("missed_ticks", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("removed_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_schedules_engine_id_engines")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(op.f("ix_schedules_engine_id"), "schedules", ["engine_id"], unique=False)
    op.create_index(op.f("ix_schedules_next_due_at"), "schedules", ["next_due_at"], unique=False)
    op.create_table(
        "cycles",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("schedule_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("engine_id", sa.String(length=40), nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("asked", sa.Boolean(), nullable=False),
        sa.Column("missed_ticks", sa.Integer(), nullable=False),
        sa.Column("settings", DOCUMENT, nullable=False),
        sa.Column("numbers", DOCUMENT, nullable=False),
        sa.Column("trace_id", sa.String(length=40), nullable=True),
        sa.Column("plan_id", sa.String(length=40), nullable=True),
        sa.Column("rollout_id", sa.String(length=40), nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_cycles_engine_id_engines")),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_cycles_plan_id_plans")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_cycles_rollout_id_rollouts")),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_cycles_schedule_id_schedules")),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_cycles_trace_id_traces")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cycles")),
        sa.UniqueConstraint("schedule_id", "number", name=op.f("uq_cycles_schedule_id_number")),
    )
    op.create_index(op.f("ix_cycles_engine_id"), "cycles", ["engine_id"], unique=False)
    op.create_index(op.f("ix_cycles_plan_id"), "cycles", ["plan_id"], unique=False)
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("cycle_id", sa.String(length=40), nullable=False),
        sa.Column("schedule_id", sa.String(length=40), nullable=False),
        sa.Column("engine_id", sa.String(length=40), nullable=False),
        sa.Column("outcome", sa.String(length=24), nullable=False),
        sa.Column("code", sa.String(length=60), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("numbers", DOCUMENT, nullable=False),
        sa.Column("trace_id", sa.String(length=40), nullable=True),
        sa.Column("plan_id", sa.String(length=40), nullable=True),
        sa.Column("rollout_id", sa.String(length=40), nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["cycle_id"], ["cycles.id"], name=op.f("fk_decisions_cycle_id_cycles")),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_decisions_engine_id_engines")),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_decisions_plan_id_plans")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_decisions_rollout_id_rollouts")),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_decisions_schedule_id_schedules")),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_decisions_trace_id_traces")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sa.UniqueConstraint("cycle_id", name=op.f("uq_decisions_cycle_id")),
    )
    op.create_index("ix_decisions_engine_id_id", "decisions", ["engine_id", "id"], unique=False)
    op.create_index("ix_decisions_schedule_id_id", "decisions", ["schedule_id", "id"], unique=False)
    op.create_index("ix_decisions_outcome_id", "decisions", ["outcome", "id"], unique=False)


def downgrade() -> None:
    """Take schedules, cycles and decisions away; the moeplan before had two tables of these names, empty."""
    for table in ("decisions", "cycles", "schedules"):
        op.drop_table(table)
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("engine_id", sa.String(length=40), nullable=False),
        sa.Column("cron", sa.String(length=200), nullable=True),
        sa.Column("interval_s", sa.Float(), nullable=True),
        sa.Column("applies", sa.Boolean(), nullable=False),
        sa.Column("gates", DOCUMENT, nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("next_due_at", MOMENT, nullable=True),
        sa.Column("last_tick_at", MOMENT, nullable=True),
        sa.Column("last_success_at", MOMENT, nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_schedules_engine_id_engines")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(op.f("ix_schedules_engine_id"), "schedules", ["engine_id"], unique=False)
    op.create_index(op.f("ix_schedules_next_due_at"), "schedules", ["next_due_at"], unique=False)
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("schedule_id", sa.String(length=40), nullable=True),
        sa.Column("engine_id", sa.String(length=40), nullable=False),
        sa.Column("outcome", sa.String(length=24), nullable=False),
        sa.Column("code", sa.String(length=60), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("numbers", DOCUMENT, nullable=False),
        sa.Column("plan_id", sa.String(length=40), nullable=True),
        sa.Column("rollout_id", sa.String(length=40), nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_decisions_engine_id_engines")),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_decisions_plan_id_plans")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_decisions_rollout_id_rollouts")),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_decisions_schedule_id_schedules")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
    )
    op.create_index(op.f("ix_decisions_engine_id"), "decisions", ["engine_id"], unique=False)
    op.create_index(op.f("ix_decisions_schedule_id"), "decisions", ["schedule_id"], unique=False)
