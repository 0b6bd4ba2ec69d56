"""Rollouts: bringing a plan's layout into its engine, and taking it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.errors import ApprovalNeeded, BadRequest, WrongState
from api.service import jobs
from api.service.context import Service
from api.states import JobKind, PlanState, RolloutState, may_follow
from api.store import engines, plans
from api.store.audit import Actor, record
from api.store.columns import now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Engine, Job, Plan, Rollout
from placement.errors import BadOption

USUAL_MEASURE_SECONDS = 30.0
MAX_MEASURE_SECONDS = 3600.0
USUAL_ROLL_BACK_MARGIN = 0.05
MAX_ROLL_BACK_MARGIN = 10.0


@dataclass(frozen=True)
class Measuring:
    """How a rollout is judged on the engine's own traffic after the push.

    Attributes
    ----------
    seconds : float
        Demand is recorded for so long; 0 measures nothing.
    margin : float
        The layout before is put back when the new one's figure is worse by more than this share of the old one's, on
        the same demand. With 0.05, an imbalance of 1.20 is put up with down to 1.26.
    """

    seconds: float = USUAL_MEASURE_SECONDS
    margin: float = USUAL_ROLL_BACK_MARGIN

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= MAX_MEASURE_SECONDS:
            raise BadOption(f"measure_seconds is {self.seconds:g}; it must be 0 to {MAX_MEASURE_SECONDS:g}.")
        if not 0 <= self.margin <= MAX_ROLL_BACK_MARGIN:
            raise BadOption(f"roll_back_margin is {self.margin:g}; it must be 0 to {MAX_ROLL_BACK_MARGIN:g}.")


NO_MEASURING = Measuring(seconds=0.0)


def begin(
    service: Service,
    session: Session,
    actor: Actor,
    *,
    plan: Plan,
    engine: Engine | None,
    pace: dict[str, Any],
    measuring: Measuring = Measuring(),
    reason: str,
) -> tuple[Rollout, Job]:
    """Queue bringing an approved plan into an engine: its own, unless another is given.

    Raises
    ------
    ApprovalNeeded, BadRequest
    """
    rollout = _of_plan(session, actor, plan=plan, engine=engine, pace=pace, measuring=measuring, reason=reason)
    return rollout, _queued(service, session, actor, rollout)


def begin_within(
    session: Session,
    actor: Actor,
    *,
    job_id: str,
    plan: Plan,
    engine: Engine | None,
    pace: dict[str, Any],
    measuring: Measuring = Measuring(),
    reason: str,
) -> Rollout:
    """Make a rollout that a running job carries out itself (:func:`api.jobs.rollout_work.carry_out`); queue nothing.

    Jobs of one engine never run together, so a job of an engine cannot wait for another one of it. The rollout's
    ``job_id`` is the running job's: while the rollout moves layers that job cannot be cancelled, and if it breaks the
    rollout ends with it. Called again by the same job for the same plan it returns the same rollout, so that a worker
    that died between this and the end of its step makes no second one.

    Raises
    ------
    ApprovalNeeded, BadRequest
    """
    for rollout in plans.rollouts_of_job(session, job_id):
        if rollout.plan_id == plan.id:
            return rollout
    rollout = _of_plan(session, actor, plan=plan, engine=engine, pace=pace, measuring=measuring, reason=reason)
    rollout.job_id = job_id
    return rollout


def take_back(
    service: Service, session: Session, actor: Actor, *, rollout: Rollout, reason: str
) -> tuple[Rollout, Job]:
    """Queue putting back the layout that a rollout replaced, also after a half-applied push.

    Raises
    ------
    WrongState
        It has not ended, moved nothing, or was taken back already.
    """
    if not may_follow(rollout.state, RolloutState.ROLLED_BACK) or not rollout.state.ended or rollout.from_hash is None:
        raise WrongState(f"the rollout is {rollout.state}: {rollout.state.sentence} There is nothing to take back.")
    back = _make(
        session, actor, engine=engines.find(session, rollout.engine_id), plan_id=None, takes_back=rollout,
        to_hash=rollout.from_hash, pace=rollout.pace, measuring=NO_MEASURING, reason=reason,
    )  # fmt: skip
    return back, _queued(service, session, actor, back)


def _of_plan(
    session: Session,
    actor: Actor,
    *,
    plan: Plan,
    engine: Engine | None,
    pace: dict[str, Any],
    measuring: Measuring,
    reason: str,
) -> Rollout:
    if plan.state is not PlanState.APPROVED:
        raise ApprovalNeeded(f"the plan {plan.id} is {plan.state}: {plan.state.sentence} Approve it first.")
    if engine is None:
        if plan.engine_id is None:
            raise BadRequest("the plan was made for no engine; name the one to push to in engine_id.")
        engine = engines.find(session, plan.engine_id)
    return _make(
        session, actor, engine=engine, plan_id=plan.id, takes_back=None, to_hash=str(plan.layout_hash),
        pace=pace, measuring=measuring, reason=reason,
    )  # fmt: skip


def _make(
    session: Session,
    actor: Actor,
    *,
    engine: Engine,
    plan_id: str | None,
    takes_back: Rollout | None,
    to_hash: str,
    pace: dict[str, Any],
    measuring: Measuring,
    reason: str,
) -> Rollout:
    rollout = Rollout(
        id=new_id("rol"),
        engine_id=engine.id,
        plan_id=plan_id,
        takes_back_id=None if takes_back is None else takes_back.id,
        state=RolloutState.WAITING,
        to_hash=to_hash,
        pace={name: value for name, value in pace.items() if value is not None},
        measure_seconds=measuring.seconds,
        roll_back_margin=measuring.margin,
        warnings=[],
        reason=reason,
        created_by=actor.who,
        created_at=now(),
        version=1,
    )
    session.add(rollout)
    session.flush()
    record(session, actor, "rollout.asked", rollout, why=reason, to_hash=to_hash)
    return rollout


def _queued(service: Service, session: Session, actor: Actor, rollout: Rollout) -> Job:
    job = jobs.begin(service, session, actor, kind=JobKind.ROLLOUT, subject_id=rollout.id, engine_id=rollout.engine_id)
    rollout.job_id = job.id
    return job
