"""What becomes of a cycle's recording, plan and rollout when the layout stays, and of a cycle that broke."""

from __future__ import annotations

from typing import Any

from api.service.decisions import conclude
from api.states import Outcome, PlanState, RolloutState, TraceState, may_follow
from api.store import plans, schedules, traces
from api.store.audit import Actor, change_state
from api.store.columns import now
from api.store.database import Session
from api.store.models import Cycle, Job

CANCELLED = "CYCLE_CANCELLED"


def let_go(
    session: Session,
    actor: Actor,
    cycle: Cycle,
    *,
    why: str,
    error: dict[str, Any],
    unfinished: PlanState = PlanState.FAILED,
) -> None:
    """Take what a cycle has made to states that say it is not wanted: nothing of it may be pushed by mistake.

    Parameters
    ----------
    error
        Of what was not finished.
    unfinished
        State of a plan that was not finished.
    """
    if cycle.rollout_id is not None:
        rollout = plans.find_rollout(session, cycle.rollout_id)
        if may_follow(rollout.state, RolloutState.CANCELLED):
            rollout.ended_at = now()
            change_state(session, rollout, RolloutState.CANCELLED, actor, why=why)
    if cycle.plan_id is not None:
        plan = plans.find(session, cycle.plan_id)
        if may_follow(plan.state, PlanState.REJECTED):
            change_state(session, plan, PlanState.REJECTED, actor, why=why)
        elif may_follow(plan.state, unfinished):
            plan.error = error
            change_state(session, plan, unfinished, actor, why=why)
    if cycle.trace_id is not None:
        trace = traces.find(session, cycle.trace_id)
        if may_follow(trace.state, TraceState.FAILED):
            trace.error = error
            change_state(session, trace, TraceState.FAILED, actor, why=why)


def give_up(session: Session, job: Job, actor: Actor, *, error: dict[str, Any] | None, why: str) -> None:
    """End a cycle whose job failed, or was cancelled (``error`` is None), with the decision that says so."""
    cycle = schedules.find_cycle(session, job.subject_id)
    if error is None:
        stopped = {"code": CANCELLED, "detail": "the cycle was cancelled.", "remedies": []}
        let_go(session, actor, cycle, why=why, error=stopped, unfinished=PlanState.CANCELLED)
        told = "The layout stays: the cycle was cancelled."
        conclude(session, actor, cycle, outcome=Outcome.SKIPPED, code=CANCELLED, sentence=told, numbers={})
        return
    let_go(session, actor, cycle, why=why or str(error["detail"]), error=error)
    told = f"The cycle ended with an error: {error['detail']} {_what_runs(session, cycle)}"
    numbers = {"error": error}
    conclude(session, actor, cycle, outcome=Outcome.FAILED, code=error["code"], sentence=told, numbers=numbers)


def _what_runs(session: Session, cycle: Cycle) -> str:
    """Say what the engine runs after a cycle that failed."""
    if cycle.rollout_id is None:
        return "Nothing was pushed; the engine keeps its layout."
    rollout = plans.find_rollout(session, cycle.rollout_id)
    if rollout.state in plans.NOTHING_MOVED:
        return "Nothing has moved; the engine keeps its layout."
    return f"The rollout is {rollout.state}: {rollout.state.sentence}"
