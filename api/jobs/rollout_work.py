"""The job that brings a layout into an engine, told by reading the engine and never by memory.

Before anything moves, the engine as it was is stored and the rollout is ``pushing``. A worker that takes the job up
again reads the engine: all layers old, the push never began and begins now; all new, it was done and is verified; some
of each, the rest is pushed; anything else, somebody else changed the engine and nothing more is done to it. Every push
names the layout it expects, so that a worker which only seemed dead cannot push a second time.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from api.jobs.durable import Json
from api.jobs.running import Finish, JobRun
from api.service.engine_access import engine_client, with_retries
from api.states import RolloutState
from api.store import engines, plans
from api.store.audit import change_state
from api.store.columns import now
from api.store.database import Session
from api.store.models import Engine, Rollout
from placement.layout import Layout
from profiler.engine.client import PUSH_TIMEOUT_S, EngineClient
from profiler.engine.contract import Placement
from profiler.engine.contract_push import PushRequest
from profiler.engine.preflight import check_ranks_agree, preflight
from profiler.engine.push import push_checked
from profiler.engine.verify import expert_weights
from profiler.errors import LayoutHashMismatch, PostPushCheckFailed
from profiler.plan_file import plan_from_document

QUIET_POLL_S = 0.5


def roll_out(run: JobRun) -> Finish:
    """Check, push, verify."""
    rollout, engine = _begin(run)
    layout = target_layout(run, rollout)
    before = run.step("check", lambda: _check(run, engine, layout))
    _go_to(run, RolloutState.PUSHING, before)
    pushed = run.step("push", lambda: _push(run, engine, rollout, layout, before))
    _go_to(run, RolloutState.VERIFYING, before)
    run.step("verify", lambda: _verify(run, engine, layout))
    return lambda session: _finish(session, run, pushed)


def target_layout(run: JobRun, rollout: Rollout) -> Layout:
    """Return the layout to bring in: a plan's, or the one that an earlier rollout replaced."""
    files = run.service.files
    with run.service.database.reading() as session:
        if rollout.takes_back_id is not None:
            earlier = plans.find_rollout(session, rollout.takes_back_id)
            placement = Placement.from_json(json.loads(files.read(str(earlier.from_sha256))))
            return Layout(placement.map_LP, gpus=placement.ep_size, experts=placement.experts)
        plan = plans.find(session, str(rollout.plan_id))
    return plan_from_document(json.loads(files.read(str(plan.sha256))), name=f"plan {plan.id}").layout


def _begin(run: JobRun) -> tuple[Rollout, Engine]:
    with run.service.database.writing() as session:
        rollout = plans.find_rollout(session, run.subject_id)
        if rollout.state is RolloutState.WAITING:
            change_state(session, rollout, RolloutState.CHECKING, run.actor)
        return rollout, engines.find(session, rollout.engine_id)


def _check(run: JobRun, engine: Engine, layout: Layout) -> Json:
    """Read the engine and keep what it was, with the checksums of every slot, before anything moves."""
    run.report(0.1, "reading the engine")
    with engine_client(run.service, engine) as client:
        found = with_retries(lambda: preflight(client, layout))
    stored = run.service.files.put_bytes(json.dumps(found.placement.to_json(), separators=(",", ":")).encode())
    warnings = [notice.to_dict() for notice in found.notices]
    return {"sha256": stored.sha256, "layout_hash": found.placement.layout_hash, "warnings": warnings}


def _push(run: JobRun, engine: Engine, rollout: Rollout, layout: Layout, before: Json) -> Json:
    run.report(0.3, "pushing")
    was = Placement.from_json(json.loads(run.service.files.read(before["sha256"])))
    trusted = _last_trusted(run, rollout) or was
    with engine_client(run.service, engine) as client:
        if run.attempt > 1:
            _wait_for_quiet(client)
        found = with_retries(lambda: preflight(client, layout))
        _require_explained(client, found.placement, was, layout)
        request = PushRequest(
            map_LP=layout.slot_to_expert_LP,
            expected_layout_hash=found.placement.layout_hash,
            layers_per_chunk=rollout.pace.get("layers_per_chunk"),
            pause_s=rollout.pace.get("pause_s", 0.0),
            dry_run=False,
        )
        # The weights are those of before the first attempt: after half a push the slots prove nothing themselves.
        result = push_checked(
            client, found, request, weights=expert_weights(trusted), history=None, timeout_s=PUSH_TIMEOUT_S
        )
    resumed = found.placement.layout_hash != was.layout_hash
    return {**result.to_dict(), "resumed": resumed, "previous_layout_hash": was.layout_hash}


def _verify(run: JobRun, engine: Engine, layout: Layout) -> Json:
    """Read once more, after the push, that the engine serves and that every rank runs the layout."""
    run.report(0.9, "verifying")
    with engine_client(run.service, engine) as client:
        with_retries(client.require_alive)
        placement = with_retries(client.placement)
    check_ranks_agree(placement)
    if placement.layout_hash != layout.hash:
        raise PostPushCheckFailed(
            f"{engine.url} runs layout {placement.layout_hash[:12]} by now, not {layout.hash[:12]} that was pushed and "
            "verified: somebody else has changed it."
        )
    return {"layout_hash": placement.layout_hash, "generation": placement.generation}


def _last_trusted(run: JobRun, rollout: Rollout) -> Placement | None:
    """Return the engine before a rollout that failed and is now taken back; its slots may hold anything since."""
    if rollout.takes_back_id is None:
        return None
    with run.service.database.reading() as session:
        earlier = plans.find_rollout(session, rollout.takes_back_id)
    if earlier.state is not RolloutState.FAILED:
        return None
    return Placement.from_json(json.loads(run.service.files.read(str(earlier.from_sha256))))


def _wait_for_quiet(client: EngineClient) -> None:
    """Wait until the push that a dead worker had sent is over: the engine goes on with it alone."""
    until_s = time.monotonic() + PUSH_TIMEOUT_S
    while with_retries(client.placement).push_in_progress and time.monotonic() < until_s:
        time.sleep(QUIET_POLL_S)


def _require_explained(client: EngineClient, now_: Placement, was: Placement, layout: Layout) -> None:
    """Refuse to touch an engine that runs neither the layout of before nor parts of the new one."""
    is_old_L = (now_.map_LP == was.map_LP).all(axis=1)
    is_new_L = (now_.map_LP == layout.slot_to_expert_LP).all(axis=1)
    if not (is_old_L | is_new_L).all():
        others = np.flatnonzero(~(is_old_L | is_new_L)).tolist()
        raise LayoutHashMismatch(
            f"{client.url} runs layout {now_.layout_hash[:12]}: layers {others} are neither as they were before this "
            "rollout nor as it wants them, so somebody else has changed them. Nothing more was done."
        )


def _go_to(run: JobRun, state: RolloutState, before: Json) -> None:
    with run.service.database.writing() as session:
        run.require_mine(session)
        rollout = plans.find_rollout(session, run.subject_id)
        if rollout.state is state or (state is RolloutState.PUSHING and rollout.state is RolloutState.VERIFYING):
            return
        rollout.from_hash, rollout.from_sha256 = before["layout_hash"], before["sha256"]
        rollout.warnings = before["warnings"]
        change_state(session, rollout, state, run.actor)


def _finish(session: Session, run: JobRun, pushed: dict[str, Any]) -> Json:
    rollout = plans.find_rollout(session, run.subject_id)
    rollout.result = pushed
    rollout.ended_at = now()
    change_state(session, rollout, RolloutState.APPLIED, run.actor, why=str(pushed.get("sentence", "")))
    if rollout.takes_back_id is not None:
        earlier = plans.find_rollout(session, rollout.takes_back_id)
        change_state(session, earlier, RolloutState.ROLLED_BACK, run.actor, why=rollout.reason)
    return {"rollout_id": rollout.id, "layout_hash": rollout.to_hash, "status": pushed["status"]}
