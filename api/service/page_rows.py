"""Rows that belong together, as pages show them: an engine with its newest plan, a plan with its rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from api.errors import NotFound
from api.states import JobKind, JobState, Outcome, PlanState, RolloutState
from api.store import audit, decisions, engines, jobs, plans, schedules, traces
from api.store.columns import now
from api.store.database import Session
from api.store.decisions import DecisionFilter
from api.store.models import AuditEvent, Decision, Engine, Job, Plan, Rollout, Schedule, Trace
from api.store.pages import Page, Paging

SHOWN = 8
"""Rows of each kind beside an engine, a recording or a plan; lists of their own have all."""

MOST_CHOICES = 50
"""Plans to choose from beside a recording."""

ALIVE = timedelta(seconds=30)
ENDED_WELL = (RolloutState.APPLIED, RolloutState.ROLLED_BACK)
"""Rollouts after which the engine ran what they brought in; one taken back is followed by the one that did so."""


@dataclass(frozen=True)
class EngineRows:
    """An engine and what happened to it last, newest first.

    Where nothing was recorded from it, its recordings are those that its newest plan was made from.
    """

    engine: Engine
    traces: Sequence[Trace]
    plans: Sequence[Plan]
    rollouts: Sequence[Rollout]
    decisions: Sequence[Decision]
    schedules: Sequence[Schedule]
    open_jobs: Sequence[Job]

    @property
    def next_due_at(self) -> datetime | None:
        """When it is rebalanced next; None where no schedule is at work."""
        return min((each.next_due_at for each in self.schedules if each.next_due_at is not None), default=None)

    @property
    def trace(self) -> Trace | None:
        """Its newest recording that can be planned from."""
        return next((trace for trace in self.traces if trace.sha256 is not None), None)

    @property
    def plan(self) -> Plan | None:
        """Its newest plan that was made."""
        return next((plan for plan in self.plans if plan.sha256 is not None), None)

    @property
    def running_hash(self) -> str | None:
        """The layout that it runs: that of its last rollout, or of its last reading where that is newer."""
        applied = next((each for each in self.rollouts if each.state in ENDED_WELL and each.ended_at is not None), None)
        read_at = self.engine.read_at
        if applied is not None and applied.ended_at is not None and (read_at is None or applied.ended_at > read_at):
            return applied.to_hash
        return None if self.engine.facts is None else self.engine.facts.get("layout_hash")


@dataclass(frozen=True)
class TraceRows:
    """A recording, its engine, and plans that its heat can be looked at with, newest first."""

    trace: Trace
    engine: Engine | None
    job: Job | None
    plans: Sequence[Plan]


@dataclass(frozen=True)
class PlanRows:
    """A plan, where it comes from and what became of it."""

    plan: Plan
    engine: Engine | None
    job: Job | None
    traces: Sequence[Trace]
    rollouts: Sequence[Rollout]
    history: Sequence[AuditEvent]
    size_job: Job | None
    """The newest that planned for other numbers of slots, or does."""


@dataclass(frozen=True)
class RolloutRows:
    """A rollout, what it brings in, and what took it back."""

    rollout: Rollout
    engine: Engine | None
    plan: Plan | None
    taken_back_by: Rollout | None
    job: Job | None
    history: Sequence[AuditEvent]


@dataclass(frozen=True)
class JobRows:
    """A job and what it is for."""

    job: Job
    engine: Engine | None


@dataclass(frozen=True)
class ScheduleRows:
    """A schedule, how its cycles ended, and the one that runs."""

    schedule: Schedule
    engine: Engine | None
    decisions: Sequence[Decision]
    open_job: Job | None


@dataclass(frozen=True)
class DecisionRows:
    """A decision and the schedule that it was made for."""

    decision: Decision
    engine: Engine | None
    schedule_name: str


@dataclass(frozen=True)
class Choices:
    """What can be chosen from, newest first."""

    engines: Sequence[Engine]
    traces: Sequence[Trace]
    plans: Sequence[Plan]


def all_engines(session: Session) -> tuple[EngineRows, ...]:
    """Return every engine, in the order they were registered."""
    return tuple(_engine_rows(session, engine) for engine in engines.all_there(session))


def one_engine(session: Session, engine_id: str) -> EngineRows:
    """Return an engine. Raises :class:`NotFound`."""
    return _engine_rows(session, engines.find(session, engine_id))


def one_trace(session: Session, trace_id: str) -> TraceRows:
    """Return a recording. Raises :class:`NotFound`."""
    trace = traces.find(session, trace_id)
    from_it = plans.made_for_trace(session, trace_id, limit=MOST_CHOICES)
    of_engine = () if trace.engine_id is None else plans.made_for_engine(session, trace.engine_id, limit=MOST_CHOICES)
    others = [plan for plan in of_engine if all(plan.id != each.id for each in from_it)]
    return TraceRows(trace, _engine(session, trace.engine_id), _job(session, trace.job_id), [*from_it, *others])


def one_plan(session: Session, plan_id: str) -> PlanRows:
    """Return a plan. Raises :class:`NotFound`."""
    plan = plans.find(session, plan_id)
    return PlanRows(
        plan,
        _engine(session, plan.engine_id),
        _job(session, plan.job_id),
        [traces.find(session, trace_id) for trace_id in plans.trace_ids(session, plan_id)],
        plans.rollouts_of(session, plan_id),
        audit.events(session, subject_id=plan_id, paging=Paging(50)).rows,
        jobs.newest_for(session, plan_id, JobKind.SIZE),
    )


def one_rollout(session: Session, rollout_id: str) -> RolloutRows:
    """Return a rollout. Raises :class:`NotFound`."""
    rollout = plans.find_rollout(session, rollout_id)
    return RolloutRows(
        rollout,
        _engine(session, rollout.engine_id),
        None if rollout.plan_id is None else plans.find(session, rollout.plan_id),
        plans.taken_back_by(session, rollout_id),
        _job(session, rollout.job_id),
        audit.events(session, subject_id=rollout_id, paging=Paging(50)).rows,
    )


def one_job(session: Session, job_id: str) -> JobRows:
    """Return a job. Raises :class:`NotFound`."""
    job = jobs.find(session, job_id)
    return JobRows(job, _engine(session, job.engine_id))


def job_events(session: Session, job_id: str) -> list[dict[str, Any]]:
    """Return a job's events so far, oldest first."""
    return [{"at": event.at, "kind": event.kind, **event.data} for event in jobs.events_after(session, job_id, 0)]


def trace_list(session: Session, cursor: str | None) -> Page[Trace]:
    return traces.page(session, Paging(50, cursor))


def plan_list(session: Session, cursor: str | None) -> Page[Plan]:
    return plans.page(session, Paging(50, cursor))


def rollout_list(session: Session, cursor: str | None) -> Page[Rollout]:
    return plans.rollouts(session, Paging(50, cursor))


def job_list(session: Session, cursor: str | None, *, state: JobState | None = None) -> Page[Job]:
    return jobs.page(session, Paging(50, cursor), state=state)


def schedule_list(session: Session) -> Page[Schedule]:
    return schedules.page(session, Paging(200))


def decision_list(
    session: Session, cursor: str | None, *, engine_id: str | None, schedule_id: str | None, outcome: Outcome | None
) -> Page[Decision]:
    """Return how cycles ended, newest first."""
    asked = DecisionFilter(engine_id=engine_id, schedule_id=schedule_id, outcome=outcome)
    return decisions.page(session, Paging(50, cursor), asked)


def one_schedule(session: Session, schedule_id: str) -> ScheduleRows:
    """Return a schedule and its newest decisions. Raises :class:`NotFound`."""
    schedule = schedules.find(session, schedule_id)
    made = decisions.page(session, Paging(100), DecisionFilter(schedule_id=schedule_id)).rows
    return ScheduleRows(
        schedule, _engine(session, schedule.engine_id), made, schedules.open_job(session, schedule.engine_id)
    )


def one_decision(session: Session, decision_id: str) -> DecisionRows:
    """Return a decision. Raises :class:`NotFound`."""
    decision = decisions.find(session, decision_id)
    name = schedules.name_of(session, decision.schedule_id)
    return DecisionRows(decision, _engine(session, decision.engine_id), name)


def choices(session: Session) -> Choices:
    """Return what a plan can be made from, and what can be compared."""
    return Choices(
        engines.all_there(session),
        [trace for trace in traces.page(session, Paging(200)).rows if trace.sha256 is not None],
        [plan for plan in plans.page(session, Paging(200)).rows if plan.sha256 is not None],
    )


def engine_names(session: Session) -> dict[str, str]:
    """Return the engines' names by id, for lists."""
    return {engine.id: engine.name for engine in engines.all_there(session)}


def workers_alive(session: Session) -> int:
    """Return how many workers were seen in the last half minute; without one, jobs wait."""
    return sum(now() - worker.seen_at < ALIVE for worker in jobs.workers(session))


def waits_for_approval(rows: EngineRows) -> Plan | None:
    """Return an engine's newest plan if somebody has to decide about it."""
    plan = rows.plan
    return plan if plan is not None and plan.state is PlanState.PROPOSED else None


def _engine_rows(session: Session, engine: Engine) -> EngineRows:
    of_engine = {"engine_id": engine.id}
    open_jobs = [
        job
        for state in (JobState.RUNNING, JobState.QUEUED)
        for job in jobs.page(session, Paging(SHOWN), state=state, **of_engine).rows
    ]
    made = plans.page(session, Paging(SHOWN), **of_engine).rows
    recorded = traces.page(session, Paging(SHOWN), **of_engine).rows
    planned_from = plans.trace_ids(session, made[0].id) if made and not recorded else ()
    return EngineRows(
        engine,
        recorded or [traces.find(session, trace_id) for trace_id in planned_from],
        made,
        plans.rollouts(session, Paging(SHOWN), **of_engine).rows,
        decisions.page(session, Paging(SHOWN), DecisionFilter(engine_id=engine.id)).rows,
        schedules.page(session, Paging(SHOWN), **of_engine).rows,
        open_jobs,
    )


def _engine(session: Session, engine_id: str | None) -> Engine | None:
    """Return an engine, None where there is none or it was removed."""
    if engine_id is None:
        return None
    try:
        return engines.find(session, engine_id)
    except NotFound:
        return None


def _job(session: Session, job_id: str | None) -> Job | None:
    return None if job_id is None else jobs.find(session, job_id)
