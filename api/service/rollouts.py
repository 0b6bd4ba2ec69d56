"""Rollouts: bringing a plan's layout into its engine, and taking it back."""

from __future__ import annotations

from typing import Any

from api.errors import ApprovalNeeded, BadRequest, WrongState
from api.service import jobs
from api.service.context import Service
from api.states import JobKind, PlanState, RolloutState
from api.store import engines
from api.store.audit import Actor, record
from api.store.columns import now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Engine, Job, Plan, Rollout


def begin(
    service: Service,
    session: Session,
    actor: Actor,
    *,
    plan: Plan,
    engine: Engine | None,
    pace: dict[str, Any],
    reason: str,
) -> tuple[Rollout, Job]:
    """Queue bringing an approved plan into an engine: its own, unless another is given.

    Raises
    ------
    ApprovalNeeded, BadRequest
    """
    if plan.state is not PlanState.APPROVED:
        raise ApprovalNeeded(f"the plan {plan.id} is {plan.state}: {plan.state.sentence} Approve it first.")
    if engine is None:
        if plan.engine_id is None:
            raise BadRequest("the plan was made for no engine; name the one to push to in engine_id.")
        engine = engines.find(session, plan.engine_id)
    return _begin(
        service, session, actor, engine=engine, plan_id=plan.id, takes_back=None, to_hash=str(plan.layout_hash),
        pace=pace, reason=reason,
    )  # fmt: skip


def take_back(
    service: Service, session: Session, actor: Actor, *, rollout: Rollout, reason: str
) -> tuple[Rollout, Job]:
    """Queue putting back the layout that a rollout replaced, also after a half-applied push.

    Raises
    ------
    WrongState
        It has not ended, moved nothing, or was taken back already.
    """
    if rollout.state not in (RolloutState.APPLIED, RolloutState.FAILED) or rollout.from_hash is None:
        raise WrongState(f"the rollout is {rollout.state}: {rollout.state.sentence} There is nothing to take back.")
    return _begin(
        service, session, actor, engine=engines.find(session, rollout.engine_id), plan_id=None, takes_back=rollout,
        to_hash=rollout.from_hash, pace=rollout.pace, reason=reason,
    )  # fmt: skip


def _begin(
    service: Service,
    session: Session,
    actor: Actor,
    *,
    engine: Engine,
    plan_id: str | None,
    takes_back: Rollout | None,
    to_hash: str,
    pace: dict[str, Any],
    reason: str,
) -> tuple[Rollout, Job]:
    rollout = Rollout(
        id=new_id("rol"),
        engine_id=engine.id,
        plan_id=plan_id,
        takes_back_id=None if takes_back is None else takes_back.id,
        state=RolloutState.WAITING,
        to_hash=to_hash,
        pace={name: value for name, value in pace.items() if value is not None},
        warnings=[],
        reason=reason,
        created_by=actor.who,
        created_at=now(),
        version=1,
    )
    session.add(rollout)
    session.flush()
    record(session, actor, "rollout.asked", rollout, why=reason, to_hash=to_hash)
    job = jobs.begin(service, session, actor, kind=JobKind.ROLLOUT, subject_id=rollout.id, engine_id=engine.id)
    rollout.job_id = job.id
    return rollout, job
