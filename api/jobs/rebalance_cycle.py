"""What a rebalancing cycle writes down: its recording, its plan, its rollout, and the decision at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.jobs.durable import Json
from api.jobs.running import Finish, JobRun
from api.rebalancing.gates import Gates, Mode
from api.service import plans as plan_service
from api.service import traces as trace_service
from api.service.cycles import let_go
from api.service.decisions import conclude
from api.service.rollouts import Measuring, begin_within
from api.states import Outcome, PlanState, RolloutState, TraceState
from api.store import engines, plans, schedules, traces
from api.store.audit import change_state
from api.store.database import Session

PACE = ("layers_per_chunk", "pause_s")
MEASURING = {"measure_seconds": "seconds", "roll_back_margin": "margin"}


@dataclass(frozen=True)
class RunningCycle:
    """A cycle that a job carries out, with the schedule's settings as they were at its tick.

    Attributes
    ----------
    id, engine_id : str
    name : str
        The schedule's, for what the cycle makes.
    mode : Mode
    gates : Gates
    capture, planning, rollout : mapping
        See :func:`api.service.schedules.create`.
    """

    id: str
    engine_id: str
    name: str
    mode: Mode
    gates: Gates
    capture: Mapping[str, Any]
    planning: Mapping[str, Any]
    rollout: Mapping[str, Any]


def open_cycle(run: JobRun) -> RunningCycle:
    """Read the cycle that a job is for."""
    with run.service.database.reading() as session:
        row = schedules.find_cycle(session, run.subject_id)
        name = schedules.name_of(session, row.schedule_id)
    settings = row.settings
    return RunningCycle(
        id=row.id,
        engine_id=row.engine_id,
        name=name,
        mode=Mode(settings["mode"]),
        gates=Gates.from_json(settings["gates"]),
        capture=settings["capture"],
        planning=settings["planning"],
        rollout=settings["rollout"],
    )


def note(run: JobRun, cycle: RunningCycle, **numbers: Any) -> None:
    """Keep numbers for the decision, however the cycle ends."""
    with run.service.database.writing() as session:
        run.require_mine(session)
        row = schedules.find_cycle(session, cycle.id)
        row.numbers = {**row.numbers, **numbers}


def ask_for_recording(run: JobRun, cycle: RunningCycle) -> Json:
    """Write down the recording that this job makes, once."""
    with run.service.database.writing() as session:
        run.require_mine(session)
        row = schedules.find_cycle(session, cycle.id)
        if row.trace_id is None:
            engine = engines.find(session, cycle.engine_id)
            trace = trace_service.expected_capture(
                session, run.actor, name=cycle.name, engine=engine, limits=cycle.capture
            )
            trace.job_id = run.job_id
            row.trace_id = trace.id
        return {"trace_id": row.trace_id}


def finish_recording(run: JobRun, trace_id: str, finish: Finish) -> None:
    """Keep the recording that was made, unless an attempt before this one has already."""
    with run.service.database.writing() as session:
        run.require_mine(session)
        if traces.find(session, trace_id).state is not TraceState.READY:
            finish(session)


def ask_for_plan(run: JobRun, cycle: RunningCycle, engine: Json) -> Json:
    """Write down the plan that this job makes, once; its moves are held within the schedule's budget."""
    options = dict(cycle.planning)
    if cycle.gates.most_moved_slots is not None:
        options["max_moved_slots"] = cycle.gates.most_moved_slots
    if engine["expert_bytes"]:
        options["expert_bytes"] = engine["expert_bytes"]
        if cycle.gates.most_moved_bytes is not None:
            options["max_moved_bytes"] = cycle.gates.most_moved_bytes
    with run.service.database.writing() as session:
        run.require_mine(session)
        row = schedules.find_cycle(session, cycle.id)
        if row.plan_id is None:
            plan = plan_service.expected(
                session, run.actor, name=cycle.name, engine=engines.find(session, cycle.engine_id),
                trace_ids=[str(row.trace_id)], options=options,
            )  # fmt: skip
            plan.job_id = run.job_id
            row.plan_id = plan.id
        return {"plan_id": row.plan_id}


def finish_plan(run: JobRun, plan_id: str, finish: Finish) -> None:
    """Keep the plan that was made, unless an attempt before this one has already."""
    with run.service.database.writing() as session:
        run.require_mine(session)
        if plans.find(session, plan_id).state is PlanState.SOLVING:
            finish(session)


def supersede_earlier(session: Session, run: JobRun, cycle: RunningCycle) -> None:
    """Reject proposals of earlier cycles that still wait: they are for older traffic."""
    row = schedules.find_cycle(session, cycle.id)
    for plan_id in schedules.plans_before(session, row):
        plan = plans.find(session, plan_id)
        if plan.state is PlanState.PROPOSED:
            why = f"the same schedule made a newer plan, {row.plan_id}"
            change_state(session, plan, PlanState.REJECTED, run.actor, why=why)


def approve(run: JobRun, cycle: RunningCycle, *, why: str) -> tuple[str, bool]:
    """Approve the cycle's plan and write its rollout down, once; return its id, and whether nothing has moved yet."""
    with run.service.database.writing() as session:
        run.require_mine(session)
        row = schedules.find_cycle(session, cycle.id)
        plan = plans.find(session, str(row.plan_id))
        if plan.state is PlanState.PROPOSED:
            change_state(session, plan, PlanState.APPROVED, run.actor, why=why)
        measuring = {field: cycle.rollout[name] for name, field in MEASURING.items() if name in cycle.rollout}
        rollout = begin_within(
            session, run.actor, job_id=run.job_id, plan=plan, engine=None, reason=why,
            pace={name: cycle.rollout.get(name) for name in PACE}, measuring=Measuring(**measuring),
        )  # fmt: skip
        row.rollout_id = rollout.id
        return rollout.id, rollout.state in (RolloutState.WAITING, RolloutState.CHECKING)


def ends(
    run: JobRun, cycle: RunningCycle, outcome: Outcome, *, code: str, sentence: str, numbers: Mapping[str, Any]
) -> Finish:
    """Return what ends the cycle with its decision, in the transaction that ends its job."""

    def finish(session: Session) -> Json:
        row = schedules.find_cycle(session, cycle.id)
        if outcome is Outcome.PROPOSED:
            supersede_earlier(session, run, cycle)
        elif outcome is not Outcome.APPLIED:
            let_go(session, run.actor, row, why=sentence, error={"code": code, "detail": sentence, "remedies": []})
        decision = conclude(
            session, run.actor, row, outcome=outcome, code=code, sentence=sentence, numbers=dict(numbers)
        )
        return {"decision_id": decision.id, "outcome": str(outcome), "code": code}

    return finish
