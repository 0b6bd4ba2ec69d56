"""The service's first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# A migration stays what it was on the day it was released, so it uses no type of the application.
DOCUMENT = sa.JSON().with_variant(JSONB(), "postgresql")
MOMENT = sa.DateTime(timezone=True)
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:

    op.create_table(
        "audit_events",
        sa.Column("number", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=60), nullable=False),
        sa.Column("subject", sa.String(length=24), nullable=False),
        sa.Column("subject_id", sa.String(length=40), nullable=False),
        sa.Column("from_state", sa.String(length=24), nullable=True),
        sa.Column("to_state", sa.String(length=24), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("data", DOCUMENT, nullable=False),
        sa.Column("request_id", sa.String(length=80), nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_events")),
    )
    op.create_index("ix_audit_events_subject_id_number", "audit_events", ["subject_id", "number"], unique=False)
    op.create_table(
        "engines",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("url", sa.String(length=500), nullable=False),
        sa.Column("key_reference", sa.String(length=500), nullable=True),
        sa.Column("read_key_reference", sa.String(length=500), nullable=True),
        sa.Column("labels", DOCUMENT, nullable=False),
        sa.Column("costs", DOCUMENT, nullable=True),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("facts", DOCUMENT, nullable=True),
        sa.Column("warnings", DOCUMENT, nullable=False),
        sa.Column("read_at", MOMENT, nullable=True),
        sa.Column("error", DOCUMENT, nullable=True),
        sa.Column("failures_in_row", sa.Integer(), nullable=False),
        sa.Column("resting_until", MOMENT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("removed_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engines")),
    )
    op.create_index(
        "uq_engines_name_there",
        "engines",
        ["name"],
        unique=True,
        sqlite_where=sa.text("removed_at IS NULL"),
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_table(
        "idempotent_answers",
        sa.Column("who", sa.String(length=80), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("headers", DOCUMENT, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("who", "key", name=op.f("pk_idempotent_answers")),
    )
    op.create_index(op.f("ix_idempotent_answers_created_at"), "idempotent_answers", ["created_at"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("level", sa.String(length=24), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("starts_with", sa.String(length=12), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("last_used_at", MOMENT, nullable=True),
        sa.Column("revoked_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_keys_sha256")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("process", sa.Integer(), nullable=False),
        sa.Column("moeplan_version", sa.String(length=40), nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_seen_at"), "workers", ["seen_at"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("engine_id", sa.String(length=40), nullable=True),
        sa.Column("subject_id", sa.String(length=40), nullable=False),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("result", DOCUMENT, nullable=True),
        sa.Column("error", DOCUMENT, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=80), nullable=True),
        sa.Column("request_id", sa.String(length=80), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("cancel_asked_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_jobs_engine_id_engines")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_engine_id_state", "jobs", ["engine_id", "state"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_index(op.f("ix_jobs_subject_id"), "jobs", ["subject_id"], unique=False)
    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("engine_id", sa.String(length=40), nullable=True),
        sa.Column("request", DOCUMENT, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("layout_hash", sa.String(length=64), nullable=True),
        sa.Column("current_hash", sa.String(length=64), nullable=True),
        sa.Column("current_sha256", sa.String(length=64), nullable=True),
        sa.Column("status", sa.String(length=24), nullable=True),
        sa.Column("local_gpu", sa.Float(), nullable=True),
        sa.Column("imbalance", sa.Float(), nullable=True),
        sa.Column("gap", sa.Float(), nullable=True),
        sa.Column("moved_slots", sa.Integer(), nullable=True),
        sa.Column("solve_seconds", sa.Float(), nullable=True),
        sa.Column("error", DOCUMENT, nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_plans_engine_id_engines")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_current_sha256"), "plans", ["current_sha256"], unique=False)
    op.create_index(op.f("ix_plans_engine_id"), "plans", ["engine_id"], unique=False)
    op.create_index(op.f("ix_plans_layout_hash"), "plans", ["layout_hash"], unique=False)
    op.create_index(op.f("ix_plans_sha256"), "plans", ["sha256"], unique=False)
    op.create_index(op.f("ix_plans_state"), "plans", ["state"], unique=False)
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
        "traces",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("origin", sa.String(length=24), nullable=False),
        sa.Column("engine_id", sa.String(length=40), nullable=True),
        sa.Column("request", DOCUMENT, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("facts", DOCUMENT, nullable=True),
        sa.Column("warnings", DOCUMENT, nullable=False),
        sa.Column("error", DOCUMENT, nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_traces_engine_id_engines")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_traces")),
    )
    op.create_index(op.f("ix_traces_engine_id"), "traces", ["engine_id"], unique=False)
    op.create_index(op.f("ix_traces_expires_at"), "traces", ["expires_at"], unique=False)
    op.create_index(op.f("ix_traces_sha256"), "traces", ["sha256"], unique=False)
    op.create_index(op.f("ix_traces_state"), "traces", ["state"], unique=False)
    op.create_table(
        "job_events",
        sa.Column("number", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("data", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id_jobs")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_job_events")),
    )
    op.create_index("ix_job_events_job_id_number", "job_events", ["job_id", "number"], unique=False)
    op.create_table(
        "plan_traces",
        sa.Column("plan_id", sa.String(length=40), nullable=False),
        sa.Column("trace_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_plan_traces_plan_id_plans")),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_plan_traces_trace_id_traces")),
        sa.PrimaryKeyConstraint("plan_id", "trace_id", name=op.f("pk_plan_traces")),
    )
    op.create_index(op.f("ix_plan_traces_trace_id"), "plan_traces", ["trace_id"], unique=False)
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("engine_id", sa.String(length=40), nullable=False),
        sa.Column("plan_id", sa.String(length=40), nullable=True),
        sa.Column("takes_back_id", sa.String(length=40), nullable=True),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("from_hash", sa.String(length=64), nullable=True),
        sa.Column("from_sha256", sa.String(length=64), nullable=True),
        sa.Column("to_hash", sa.String(length=64), nullable=False),
        sa.Column("pace", DOCUMENT, nullable=False),
        sa.Column("result", DOCUMENT, nullable=True),
        sa.Column("measured", DOCUMENT, nullable=True),
        sa.Column("warnings", DOCUMENT, nullable=False),
        sa.Column("error", DOCUMENT, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_rollouts_engine_id_engines")),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_rollouts_plan_id_plans")),
        sa.ForeignKeyConstraint(["takes_back_id"], ["rollouts.id"], name=op.f("fk_rollouts_takes_back_id_rollouts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
    )
    op.create_index(op.f("ix_rollouts_engine_id"), "rollouts", ["engine_id"], unique=False)
    op.create_index(op.f("ix_rollouts_from_sha256"), "rollouts", ["from_sha256"], unique=False)
    op.create_index(op.f("ix_rollouts_plan_id"), "rollouts", ["plan_id"], unique=False)
    op.create_index(op.f("ix_rollouts_state"), "rollouts", ["state"], unique=False)
    op.create_table(
        "trace_uploads",
        sa.Column("trace_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], name=op.f("fk_trace_uploads_trace_id_traces")),
        sa.PrimaryKeyConstraint("trace_id", "name", name=op.f("pk_trace_uploads")),
    )
    op.create_index(op.f("ix_trace_uploads_sha256"), "trace_uploads", ["sha256"], unique=False)
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
