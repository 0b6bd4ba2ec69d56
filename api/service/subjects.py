"""What becomes of the trace, plan, rollout or cycle of a job that was cancelled or failed."""

from __future__ import annotations

from typing import Any

from api.errors import JobStopped
from api.service import cycles
from api.states import JobKind, PlanState, RolloutState, TraceState, may_follow
from api.store import plans, traces
from api.store.audit import Actor, change_state
from api.store.columns import now
from api.store.database import Session
from api.store.models import Job, Rollout


def give_up(session: Session, job: Job, actor: Actor, *, error: dict[str, Any] | None, why: str = "") -> None:
    """Take what a job was for to the state that says it was not done.

    Parameters
    ----------
    error
        ``code``, ``detail``, ``remedies``; None when the job was cancelled.
    """
    if job.kind in (JobKind.IMPORT, JobKind.CAPTURE):
        trace = traces.find(session, job.subject_id)
        trace.error = error or {"code": JobStopped.code, "detail": "the job was cancelled.", "remedies": []}
        if may_follow(trace.state, TraceState.FAILED):
            change_state(session, trace, TraceState.FAILED, actor, why=why or trace.error["detail"])
        traces.forget_uploads(session, trace.id)
    elif job.kind is JobKind.PLAN:
        plan = plans.find(session, job.subject_id)
        plan.error = error
        to = PlanState.CANCELLED if error is None else PlanState.FAILED
        if may_follow(plan.state, to):
            change_state(session, plan, to, actor, why=why or (error or {}).get("detail", ""))
    for rollout in plans.rollouts_of_job(session, job.id):
        if not rollout.state.ended:
            _give_up_rollout(session, rollout, actor, error=error, why=why)
    if job.kind is JobKind.REBALANCE:
        cycles.give_up(session, job, actor, error=error, why=why)


def _give_up_rollout(
    session: Session, rollout: Rollout, actor: Actor, *, error: dict[str, Any] | None, why: str
) -> None:
    """End a rollout whose job broke before it could end it itself: nothing has moved, or nobody knows what has."""
    rollout.error = error
    rollout.ended_at = now()
    if rollout.state.moves_layers:
        to = RolloutState.UNCONFIRMED
    else:
        to = RolloutState.CANCELLED if error is None else RolloutState.REFUSED
    change_state(session, rollout, to, actor, why=why or (error or {}).get("detail", ""))
