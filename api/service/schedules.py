"""Schedules: making and changing them, pausing, and running a cycle between the ticks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.errors import BadSchedule, EngineInUse, WrongState
from api.rebalancing.evidence import LEAST_WINDOWS
from api.rebalancing.gates import Gates, Mode
from api.rebalancing.timing import Timing
from api.service.context import Service
from api.service.plan_options import require_valid
from api.service.ticks import begin_cycle, timing_of
from api.service.traces import checked_limits
from api.states import Outcome
from api.store import engines, schedules
from api.store.audit import Actor, record
from api.store.columns import now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Engine, Job, Schedule

TIMES = ("cron", "interval_s", "time_zone")
USUAL_CAPTURE: Mapping[str, Any] = {"seconds": 60.0, "window_seconds": 10.0}
USUAL_PLANNING: Mapping[str, Any] = {"objective": "locality", "holdout": 0.25}


def create(
    session: Session,
    actor: Actor,
    *,
    engine: Engine,
    name: str,
    times: Mapping[str, Any],
    mode: Mode,
    capture: Mapping[str, Any],
    planning: Mapping[str, Any],
    gates: Gates,
    rollout: Mapping[str, Any],
    paused: bool,
) -> Schedule:
    """Make a schedule; its first tick is the next one, never now.

    Parameters
    ----------
    times
        ``cron`` or ``interval_s``, and ``time_zone``.
    capture
        ``steps`` or ``seconds``, and the length of windows, of at least two of which one is held out to judge on.
    planning
        Fields of :class:`api.plan_request.PlanRequest`; what is not given is taken from the engine.
    rollout
        ``layers_per_chunk``, ``pause_s``, ``measure_seconds``, ``roll_back_margin``.

    Raises
    ------
    BadSchedule, BadRequest, InvalidInput
    """
    at = schedules.clock(session)
    timing = Timing(times.get("cron"), times.get("interval_s"), times.get("time_zone") or "UTC", starts_at=at)
    schedule = Schedule(
        id=new_id("sch"),
        name=name,
        engine_id=engine.id,
        cron=timing.cron,
        interval_s=timing.interval_s,
        time_zone=timing.time_zone,
        starts_at=at,
        mode=mode,
        capture=_checked_capture(capture or USUAL_CAPTURE),
        planning=_checked_planning({**USUAL_PLANNING, **planning}),
        gates=gates.to_json(),
        rollout=dict(rollout),
        paused=paused,
        next_due_at=None if paused else timing.next_after(at),
        cycles=0,
        missed_ticks=0,
        created_by=actor.who,
        version=1,
        created_at=now(),
    )
    session.add(schedule)
    session.flush()
    record(session, actor, "schedule.made", schedule, engine_id=engine.id, mode=str(mode))
    return schedule


def change(session: Session, actor: Actor, schedule: Schedule, changes: Mapping[str, Any]) -> None:
    """Change fields of a schedule that is locked; what is not named stays. A cycle that runs goes on as it began.

    Errors are those of :func:`create`.
    """
    values = dict(changes)
    if "capture" in values:
        values["capture"] = _checked_capture(values["capture"])
    if "planning" in values:
        values["planning"] = _checked_planning({**USUAL_PLANNING, **values["planning"]})
    if "gates" in values:
        values["gates"] = values["gates"].to_json()
    if values.get("cron") is not None:
        values.setdefault("interval_s", None)
    if values.get("interval_s") is not None:
        values.setdefault("cron", None)
    for field, value in values.items():
        setattr(schedule, field, value)
    if set(values) & set(TIMES):
        schedule.starts_at = schedules.clock(session)
        timing = timing_of(schedule)
        schedule.next_due_at = None if schedule.paused else timing.next_after(schedule.starts_at)
    schedule.version += 1
    record(session, actor, "schedule.changed", schedule, fields=sorted(values))


def pause(session: Session, actor: Actor, schedule: Schedule, *, why: str) -> None:
    """Let no tick come due until it is resumed; a cycle that runs goes on. Raises :class:`WrongState`."""
    if schedule.paused:
        raise WrongState(f"the schedule {schedule.id} is paused already.")
    schedule.paused, schedule.next_due_at = True, None
    schedule.version += 1
    record(session, actor, "schedule.paused", schedule, why=why)


def resume(session: Session, actor: Actor, schedule: Schedule, *, why: str) -> None:
    """Go on with the next tick; those that passed meanwhile are not made up for. Raises :class:`WrongState`."""
    if not schedule.paused:
        raise WrongState(f"the schedule {schedule.id} is not paused.")
    schedule.paused = False
    schedule.next_due_at = timing_of(schedule).next_after(schedules.clock(session))
    schedule.version += 1
    record(session, actor, "schedule.resumed", schedule, why=why)


def remove(session: Session, actor: Actor, schedule: Schedule, *, why: str) -> None:
    """Let a schedule end; its decisions stay, and a cycle that runs goes on."""
    schedule.removed_at, schedule.next_due_at = now(), None
    schedule.version += 1
    record(session, actor, "schedule.removed", schedule, why=why)


def run_now(service: Service, session: Session, actor: Actor, schedule: Schedule, *, why: str) -> Job:
    """Begin a cycle of a locked schedule between its ticks, also of one that is paused; its gates hold as always.

    Raises
    ------
    EngineInUse
        A cycle of the engine has not ended.
    """
    engine = schedules.lock_engine(session, schedule.engine_id)
    running = schedules.open_job(session, schedule.engine_id)
    if running is not None:
        name = schedule.engine_id if engine is None else engine.name
        raise EngineInUse(f"a cycle of the engine {name!r} is running (job {running.id}); wait for its decision.")
    engines.find(session, schedule.engine_id)
    record(session, actor, "schedule.run_asked", schedule, why=why)
    job = begin_cycle(service, session, actor, schedule, due_at=schedules.clock(session), missed=0, asked=True)
    if job is None:
        raise EngineInUse(Outcome.SKIPPED.sentence)
    return job


def _checked_capture(limits: Mapping[str, Any]) -> dict[str, Any]:
    given = checked_limits(limits)
    for unit in ("steps", "seconds"):
        length, window = given.get(unit), given.get(f"window_{unit}")
        if length is not None and window is not None and length < LEAST_WINDOWS * window:
            raise BadSchedule(
                f"capture.{unit} is {length:g} and a window has {window:g}; the last windows are kept to judge on, so "
                f"give at least {LEAST_WINDOWS * window:g}."
            )
    return given


def _checked_planning(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    require_valid({**given, "gpus": 1})
    return given
