"""Ticks: every one becomes one cycle, whoever looks, however many look and however late.

A schedule's row says when its next tick is due. Whoever finds it due locks the row, makes the cycle and its job and
writes down the tick after it, all in one transaction; cycles of a schedule are numbered, and no number is given twice.
Time is the database's, so replicas need not agree on theirs.

======================================  ==========================================================================
what happened                           what is done
======================================  ==========================================================================
several ticks passed and nobody looked  the last of them is run; the others are counted as missed
the clock was put forward               the same
the clock was put back                  ticks go on from the new time; where it was put back by less than a tick,
                                        nothing is run twice
the engine's cycle before still runs    the tick ends at once, with a decision that says so
======================================  ==========================================================================
"""

from __future__ import annotations

from datetime import datetime

import structlog

from api.errors import BadSchedule
from api.rebalancing.timing import Timing
from api.service import decisions, jobs
from api.service.context import Service
from api.states import JobKind, Outcome
from api.store import schedules
from api.store.audit import Actor
from api.store.columns import iso, now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Cycle, Job, Schedule

log = structlog.get_logger("moeplan.schedules")


def begin_due(service: Service, *, at: datetime | None = None) -> int:
    """Begin the cycle of every schedule that is due; return how many.

    Parameters
    ----------
    at
        The time, by default that of the database.
    """
    with service.database.reading() as session:
        looked_at = at or schedules.clock(session)
        waiting = schedules.with_a_tick_to_look_at(session, looked_at)
    begun = 0
    for schedule_id in waiting:
        try:
            with service.database.writing() as session:
                begun += _tick(service, session, schedule_id, at=at or schedules.clock(session))
        except BadSchedule as error:
            # Say a time zone that the machine does not know any more; the others go on.
            log.error("schedule cannot be followed", schedule=schedule_id, detail=error.detail)
    return begun


def timing_of(schedule: Schedule) -> Timing:
    """Return a schedule's ticks. Raises :class:`BadSchedule`."""
    return Timing(schedule.cron, schedule.interval_s, schedule.time_zone, starts_at=schedule.starts_at)


def begin_cycle(
    service: Service, session: Session, actor: Actor, schedule: Schedule, *, due_at: datetime, missed: int, asked: bool
) -> Job | None:
    """Make the next cycle of a locked schedule and queue its job; None where the engine's cycle before still runs."""
    schedule.cycles += 1
    cycle = Cycle(
        id=new_id("cyc"),
        schedule_id=schedule.id,
        number=schedule.cycles,
        engine_id=schedule.engine_id,
        due_at=due_at,
        asked=asked,
        missed_ticks=missed,
        settings={
            "mode": str(schedule.mode),
            "capture": schedule.capture,
            "planning": schedule.planning,
            "gates": schedule.gates,
            "rollout": schedule.rollout,
        },
        numbers={},
        created_by=actor.who,
        created_at=now(),
    )
    session.add(cycle)
    session.flush()
    schedules.lock_engine(session, schedule.engine_id)
    running = schedules.open_job(session, schedule.engine_id)
    if running is not None:
        _skip(session, actor, cycle, running)
        return None
    job = jobs.begin(service, session, actor, kind=JobKind.REBALANCE, subject_id=cycle.id, engine_id=schedule.engine_id)
    cycle.job_id = job.id
    return job


def _tick(service: Service, session: Session, schedule_id: str, *, at: datetime) -> int:
    schedule = schedules.take(session, schedule_id)
    if schedule is None or schedule.next_due_at is None:
        return 0
    timing = timing_of(schedule)
    if schedule.next_due_at > at:
        _follow_clock_back(schedule, timing, at)
        return 0
    due_at, missed = timing.last_until(at, since=schedule.next_due_at)
    schedule.last_tick_at, schedule.next_due_at = due_at, timing.next_after(at)
    schedule.missed_ticks += missed
    if missed:
        log.warning("ticks were missed", schedule=schedule.id, missed=missed, due_at=iso(due_at))
    actor = Actor(f"schedule:{schedule.id}")
    begin_cycle(service, session, actor, schedule, due_at=due_at, missed=missed, asked=False)
    return 1


def _follow_clock_back(schedule: Schedule, timing: Timing, at: datetime) -> None:
    """Take ticks up at the present time when the clock was put back to before what is known to be over."""
    over_at = max(schedule.last_tick_at or schedule.starts_at, schedule.starts_at)
    if over_at <= at:
        return
    starts_at = min(schedule.starts_at, at)
    following = Timing(timing.cron, timing.interval_s, timing.time_zone, starts_at=starts_at).next_after(at)
    if following < over_at:
        log.warning("the clock was put back", schedule=schedule.id, next_due_at=iso(following))
        schedule.starts_at, schedule.next_due_at, schedule.last_tick_at = starts_at, following, None


def _skip(session: Session, actor: Actor, cycle: Cycle, running: Job) -> None:
    decisions.conclude(
        session,
        actor,
        cycle,
        outcome=Outcome.SKIPPED,
        code="CYCLE_RUNNING",
        sentence=f"The layout stays: the cycle before is still running (job {running.id}).",
        numbers={"running_job_id": running.id, "running_for_s": (now() - running.created_at).total_seconds()},
    )
