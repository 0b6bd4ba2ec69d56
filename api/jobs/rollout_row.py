"""What a job writes down about its rollout: how far it is, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.jobs.durable import Json
from api.jobs.running import JobRun
from api.states import RolloutState, may_follow
from api.store import engines, plans
from api.store.audit import change_state
from api.store.columns import now
from api.store.database import Session
from api.store.models import Rollout


def go_to(run: JobRun, rollout_id: str, state: RolloutState, **fields: Any) -> None:
    """Take a rollout a step further, unless an attempt before this one has already.

    Raises
    ------
    JobStopped, JobTakenOver
        The job must not go on; nothing is written.
    """
    with run.service.database.writing() as session:
        run.require_mine(session)
        rollout = plans.find_rollout(session, rollout_id)
        if not may_follow(rollout.state, state):
            return  # it was there before this attempt
        _write(session, rollout, fields)
        change_state(session, rollout, state, run.actor)


def end(run: JobRun, rollout_id: str, state: RolloutState, *, why: str, **fields: Any) -> Json:
    """Take a rollout to its last state, once, and return how it ended (:func:`outcome_of`).

    When it took an earlier rollout back and did so, that one becomes ``rolled_back``.

    Raises
    ------
    JobStopped, JobTakenOver
        As :func:`go_to`.
    """
    with run.service.database.writing() as session:
        run.require_mine(session)
        rollout = plans.find_rollout(session, rollout_id)
        if not rollout.state.ended:
            _write(session, rollout, fields)
            rollout.ended_at = now()
            change_state(session, rollout, state, run.actor, why=why)
            if state is RolloutState.APPLIED and rollout.takes_back_id is not None:
                earlier = plans.find_rollout(session, rollout.takes_back_id)
                change_state(session, earlier, RolloutState.ROLLED_BACK, run.actor, why=rollout.reason)
        return outcome_of(rollout)


def _write(session: Session, rollout: Rollout, fields: Mapping[str, Any]) -> None:
    """Set fields of a rollout, and count the bytes of pushes that are written down here."""
    for name, value in fields.items():
        setattr(rollout, name, value)
    moved = sum(int((fields.get(name) or {}).get("moved_bytes") or 0) for name in ("result", "taken_back"))
    if moved:
        engines.find(session, rollout.engine_id).moved_bytes += moved


def outcome_of(rollout: Rollout) -> Json:
    """Return how a rollout ended, as JSON; for the keys see :func:`api.jobs.rollout_work.carry_out`."""
    result = rollout.result or {}
    error, verdict = rollout.error, rollout.verdict or {}
    said = [str(error["detail"])] if error else [str(result.get("sentence", "")), str(verdict.get("sentence", ""))]
    return {
        "rollout_id": rollout.id,
        "state": str(rollout.state),
        "sentence": " ".join(part for part in said if part) or rollout.state.sentence,
        "layout_hash": rollout.runs_hash,
        "from_hash": rollout.from_hash,
        "to_hash": rollout.to_hash,
        "status": result.get("status"),
        "moved_slots": result.get("moved_slots"),
        "moved_bytes": result.get("moved_bytes"),
        "predicted": rollout.predicted,
        "measured": rollout.measured,
        "measured_before": rollout.measured_before,
        "verdict": rollout.verdict,
        "warnings": rollout.warnings,
        "error": error,
    }
