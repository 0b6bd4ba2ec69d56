"""The tables; ``migrations/`` makes them, and a test holds both to be equal."""

from __future__ import annotations

from api.store.models.base import Base
from api.store.models.engines import Engine
from api.store.models.jobs import Job, JobEvent, Worker
from api.store.models.keys import AuditEvent, IdempotentAnswer, Key
from api.store.models.plans import Plan, PlanTrace, Rollout
from api.store.models.schedules import Cycle, Decision, ForgottenDecisions, Schedule
from api.store.models.traces import Trace, TraceUpload

__all__ = [
    "AuditEvent",
    "Base",
    "Cycle",
    "Decision",
    "Engine",
    "ForgottenDecisions",
    "IdempotentAnswer",
    "Job",
    "JobEvent",
    "Key",
    "Plan",
    "PlanTrace",
    "Rollout",
    "Schedule",
    "Trace",
    "TraceUpload",
    "Worker",
]
