"""Forgetting decisions with all that was made for them alone; what an engine ran, or may still run, stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from api.states import PlanState, TraceState
from api.store.decisions import KIND
from api.store.identifiers import first_id_of
from api.store.models import (
    Cycle,
    Decision,
    ForgottenDecisions,
    Job,
    JobEvent,
    Plan,
    PlanTrace,
    Rollout,
    Trace,
    TraceUpload,
)

UNWANTED_PLANS = (PlanState.REJECTED, PlanState.FAILED, PlanState.CANCELLED)
EMPTY_TRACES = (TraceState.EXPIRED, TraceState.FAILED)


def decisions_over(session: Session, *, older_than: datetime, limit: int) -> Sequence[Decision]:
    """Return the oldest decisions made before a moment; the last one of every schedule is none of them."""
    last = select(func.max(Decision.id)).group_by(Decision.schedule_id)
    query = select(Decision).where(Decision.id < first_id_of(KIND, older_than), Decision.id.not_in(last))
    return session.scalars(query.order_by(Decision.id).limit(limit)).all()


def forget_decisions(session: Session, over: Sequence[Decision]) -> None:
    """Remove decisions, their cycles and jobs, plans that nobody wanted and recordings that are empty; count them."""
    for outcome, count in Counter(decision.outcome for decision in over).items():
        kept = session.get(ForgottenDecisions, outcome, with_for_update=True)
        if kept is None:
            session.add(ForgottenDecisions(outcome=outcome, count=count))
        else:
            kept.count += count
    cycle_ids = [decision.cycle_id for decision in over]
    made = session.execute(select(Cycle.plan_id, Cycle.trace_id, Cycle.job_id).where(Cycle.id.in_(cycle_ids))).all()
    session.execute(delete(Decision).where(Decision.id.in_([decision.id for decision in over])))
    session.execute(delete(Cycle).where(Cycle.id.in_(cycle_ids)))
    _forget_plans(session, [row.plan_id for row in made if row.plan_id is not None])
    _forget_traces(session, [row.trace_id for row in made if row.trace_id is not None])
    job_ids = [row.job_id for row in made if row.job_id is not None]
    session.execute(delete(JobEvent).where(JobEvent.job_id.in_(job_ids)))
    session.execute(delete(Job).where(Job.id.in_(job_ids)))


def _forget_plans(session: Session, plan_ids: Sequence[str]) -> None:
    pushed = select(Rollout.plan_id).where(Rollout.plan_id.in_(plan_ids))
    found = select(Plan.id).where(Plan.id.in_(plan_ids), Plan.state.in_(UNWANTED_PLANS), Plan.id.not_in(pushed))
    gone = session.scalars(found).all()
    session.execute(delete(PlanTrace).where(PlanTrace.plan_id.in_(gone)))
    session.execute(delete(Plan).where(Plan.id.in_(gone)))


def _forget_traces(session: Session, trace_ids: Sequence[str]) -> None:
    needed = select(PlanTrace.trace_id).where(PlanTrace.trace_id.in_(trace_ids))
    empty = (Trace.state.in_(EMPTY_TRACES), Trace.kept.is_(False), Trace.id.not_in(needed))
    gone = session.scalars(select(Trace.id).where(Trace.id.in_(trace_ids), *empty)).all()
    session.execute(delete(TraceUpload).where(TraceUpload.trace_id.in_(gone)))
    session.execute(delete(Trace).where(Trace.id.in_(gone)))
