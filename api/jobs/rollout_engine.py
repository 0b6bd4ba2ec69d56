"""The steps of a rollout that talk to the engine; each returns JSON and may be run again after a crash."""

from __future__ import annotations

import json
import time

import numpy as np

from api.jobs.durable import Json
from api.jobs.rollout_aim import Aim, layout_of, planned, stored_placement
from api.jobs.rollout_progress import progress_told
from api.jobs.rollout_verdict import figures
from api.service.engine_access import engine_client, with_retries
from api.states import RolloutState
from api.store import plans
from placement.errors import CodedError
from placement.layout import Layout
from placement.plan import Plan
from profiler.engine.client import PUSH_TIMEOUT_S, EngineClient
from profiler.engine.contract import Placement
from profiler.engine.contract_push import PushRequest
from profiler.engine.preflight import check_ranks_agree, preflight
from profiler.engine.push import push_checked
from profiler.engine.recognise import Found, recognise, sentence
from profiler.engine.verify import expert_weights, verify_pushed
from profiler.errors import EngineRestarted, LayoutHashMismatch, PostPushCheckFailed

QUIET_POLL_S = 0.5

PATIENT_ATTEMPTS = 6
PATIENT_S = 180.0
"""After layers have moved, an engine that cannot be reached is asked for about 12 seconds; one that takes connections
and does not answer for no longer than this and one limit more."""

REFUSED_AS_A_WHOLE = ("LAYOUT_HASH_MISMATCH", "ENGINE_BUSY", "ENGINE_REFUSED", "ENGINE_RESTING", "SECRET_MISSING")
"""Errors of a push with which no engine has moved anything."""

REFUSED, UNREAD = "refused", "unread"
"""Beside :class:`profiler.engine.recognise.Found`: nothing was done, and nothing could be read."""


def check(aim: Aim) -> Json:
    """Read the engine and keep what it was, with the checksums of every slot, before anything moves."""
    aim.report(0.05, "reading the engine")
    with engine_client(aim.service, aim.engine) as client:
        found = with_retries(lambda: preflight(client, aim.layout))
    stored = aim.service.files.put_bytes(json.dumps(found.placement.to_json(), separators=(",", ":")).encode())
    return {
        "sha256": stored.sha256,
        "layout_hash": found.placement.layout_hash,
        "warnings": [notice.to_dict() for notice in found.notices],
        "predicted": None if aim.rollout.plan_id is None else _predicted(planned(aim.service, aim.rollout.plan_id)),
    }


def _predicted(plan: Plan) -> Json:
    """Return a plan's own figures: on the windows that were held out, where some were."""
    held_out = plan.metrics.holdout
    basis = "planned windows" if held_out is None else "held-out windows"
    return {**figures(held_out or plan.metrics), "basis": basis}


def push(aim: Aim, checked: Json) -> Json:
    """Push the layers that are not new yet, and read them back."""
    aim.report(0.1, "pushing")
    before = stored_placement(aim.service, checked["sha256"])
    trusted = _last_trusted(aim) or before
    return _bring_in(aim, aim.layout, before=before, trusted=trusted)


def take_back(aim: Aim, checked: Json) -> Json:
    """Push the layout of before the rollout, with the weights that every expert had then."""
    aim.report(0.9, "taking it back")
    before = stored_placement(aim.service, checked["sha256"])
    return _bring_in(aim, layout_of(before), before=before, trusted=before)


def _bring_in(aim: Aim, layout: Layout, *, before: Placement, trusted: Placement) -> Json:
    with engine_client(aim.service, aim.engine) as client:
        if aim.run.attempt > 1:
            _wait_for_quiet(client)
        found = with_retries(lambda: preflight(client, layout))
        _require_explained(client, found.placement, before, aim.layout)
        request = PushRequest(
            map_LP=layout.slot_to_expert_LP,
            expected_layout_hash=found.placement.layout_hash,
            layers_per_chunk=aim.rollout.pace.get("layers_per_chunk"),
            pause_s=aim.rollout.pace.get("pause_s", 0.0),
            dry_run=False,
        )
        # The weights are those of before the first attempt: after half a push the slots prove nothing themselves.
        with progress_told(aim, found.placement, layout.slot_to_expert_LP):
            result = push_checked(
                client, found, request, weights=expert_weights(trusted), history=None, timeout_s=PUSH_TIMEOUT_S
            )
    return {
        **result.to_dict(),
        "resumed": found.placement.layout_hash != before.layout_hash,
        "previous_layout_hash": before.layout_hash,
        "sentence": result.sentence(),
    }


def verify(aim: Aim, checked: Json, *, weights: bool) -> Json:
    """Read once more, after the push, that the engine serves and that every rank runs the layout.

    Parameters
    ----------
    weights
        Compare the weights in every slot too: nobody has yet.
    """
    aim.report(0.6, "verifying")
    before = stored_placement(aim.service, checked["sha256"])
    compared = weights and before.checksums is not None
    with engine_client(aim.service, aim.engine) as client:
        with_retries(client.require_alive, attempts=PATIENT_ATTEMPTS, longest_s=PATIENT_S)
        seen = with_retries(
            lambda: client.placement(checksums=compared), attempts=PATIENT_ATTEMPTS, longest_s=PATIENT_S
        )
    require_runs(seen, before, aim)
    check_ranks_agree(seen)
    if compared:
        verify_pushed(seen, aim.layout, weights=expert_weights(before))
    return {"layout_hash": seen.layout_hash, "boot_id": seen.boot_id}


def require_runs(seen: Placement, before: Placement, aim: Aim) -> None:
    """Raise, by what is there instead, unless the engine runs the layout.

    Raises
    ------
    EngineRestarted
        It was started anew.
    LayoutHashMismatch
        Somebody else has changed it.
    PostPushCheckFailed
        Only some layers are new.
    """
    found = recognise(seen, before, aim.layout)
    if found is Found.NEW:
        return
    kinds = {Found.RESTARTED: EngineRestarted, Found.RESHAPED: EngineRestarted, Found.MIXED: PostPushCheckFailed}
    raise kinds.get(found, LayoutHashMismatch)(sentence(found, seen, url=aim.engine.url))


def read_after_push(aim: Aim, checked: Json, error: Json) -> Json:
    """Find out what a push that ended with an error has left, as :func:`read` does.

    ``found`` is :data:`REFUSED` where the error says that the engine refused it as a whole, unless an attempt before
    this one died: half of its work may be there.
    """
    if aim.run.attempt == 1 and error["code"] in REFUSED_AS_A_WHOLE:
        return {"found": REFUSED, "layout_hash": checked["layout_hash"], "sentence": ""}
    return read(aim, checked)


def read(aim: Aim, checked: Json) -> Json:
    """Find out what the engine runs: ``found`` (:data:`UNREAD` where it does not answer), in words, and the hash."""
    before = stored_placement(aim.service, checked["sha256"])
    try:
        with engine_client(aim.service, aim.engine) as client:
            seen = with_retries(client.placement, attempts=PATIENT_ATTEMPTS, longest_s=PATIENT_S)
    except CodedError as unread:
        return {"found": UNREAD, "layout_hash": None, "sentence": unread.detail}
    found = recognise(seen, before, aim.layout)
    return {
        "found": str(found),
        "layout_hash": seen.layout_hash,
        "sentence": sentence(found, seen, url=aim.engine.url),
    }


def _last_trusted(aim: Aim) -> Placement | None:
    """Return the engine before a rollout that failed and is now taken back; its slots may hold anything since."""
    if aim.rollout.takes_back_id is None:
        return None
    with aim.service.database.reading() as session:
        earlier = plans.find_rollout(session, aim.rollout.takes_back_id)
    if earlier.state not in (RolloutState.FAILED, RolloutState.UNCONFIRMED):
        return None
    return stored_placement(aim.service, str(earlier.from_sha256))


def _wait_for_quiet(client: EngineClient) -> None:
    """Wait until the push that a dead worker had sent is over: the engine goes on with it alone."""
    until_s = time.monotonic() + PUSH_TIMEOUT_S
    while with_retries(client.placement).push_in_progress and time.monotonic() < until_s:
        time.sleep(QUIET_POLL_S)


def _require_explained(client: EngineClient, seen: Placement, was: Placement, layout: Layout) -> None:
    """Refuse to touch an engine that runs neither the layout of before nor parts of the new one."""
    is_old_L = (seen.map_LP == was.map_LP).all(axis=1)
    is_new_L = (seen.map_LP == layout.slot_to_expert_LP).all(axis=1)
    if not (is_old_L | is_new_L).all():
        others = np.flatnonzero(~(is_old_L | is_new_L)).tolist()
        raise LayoutHashMismatch(
            f"{client.url} runs layout {seen.layout_hash[:12]}: layers {others} are neither as they were before this "
            "rollout nor as it wants them, so somebody else has changed them. Nothing more was done."
        )
