"""How cycles end: one decision each, with a sentence and its numbers."""

from __future__ import annotations

from typing import Any

from api.states import Outcome
from api.store import decisions, jobs, schedules
from api.store.audit import Actor, record
from api.store.columns import now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Cycle, Decision

SUCCESSES = (Outcome.NOTHING, Outcome.PROPOSED, Outcome.APPLIED, Outcome.ROLLED_BACK)
"""Outcomes of cycles that recorded, compared and decided; the time of the last one is a metric."""


def conclude(
    session: Session,
    actor: Actor,
    cycle: Cycle,
    *,
    outcome: Outcome,
    code: str,
    sentence: str,
    numbers: dict[str, Any],
) -> Decision:
    """End a cycle with its decision; one that has ended already keeps the decision it has."""
    there = decisions.of_cycle(session, cycle.id)
    if there is not None:
        return there
    decision = Decision(
        id=new_id(decisions.KIND),
        cycle_id=cycle.id,
        schedule_id=cycle.schedule_id,
        engine_id=cycle.engine_id,
        outcome=outcome,
        code=code,
        sentence=sentence,
        numbers={**cycle.numbers, **numbers, "missed_ticks": cycle.missed_ticks},
        trace_id=cycle.trace_id,
        plan_id=cycle.plan_id,
        rollout_id=cycle.rollout_id,
        job_id=cycle.job_id,
        created_at=now(),
    )
    session.add(decision)
    session.flush()
    cycle.ended_at = decision.created_at
    if outcome in SUCCESSES:
        schedules.succeeded(session, cycle.schedule_id, decision.created_at)
    record(session, actor, f"decision.{outcome}", decision, why=sentence, code=code)
    if cycle.job_id is not None:
        jobs.say(session, cycle.job_id, "decision", id=decision.id, outcome=str(outcome), code=code, sentence=sentence)
    return decision
