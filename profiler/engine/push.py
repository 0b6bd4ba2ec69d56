"""Changing the layout of a live engine through one door: checked before, read back after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from placement.errors import BadOption
from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement
from profiler.engine.contract_push import MAX_PAUSE_S, PushAnswer, PushRequest
from profiler.engine.history import LayoutHistory
from profiler.engine.map_rules import changed_layers, chunks_of_layers
from profiler.engine.preflight import Preflight, preflight
from profiler.engine.push_result import PushResult, PushStatus
from profiler.engine.recognise import was_restarted
from profiler.engine.time_limits import PUSH_TIMEOUT_S
from profiler.engine.verify import ExpertWeights, expert_weights, verify_pushed
from profiler.errors import (
    ApplyStalled,
    EngineAnswerInvalid,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineRefused,
    EngineRestarted,
    EngineUnreachable,
    LayoutHashMismatch,
    PartialApply,
    PostPushCheckFailed,
    WeightsChanged,
)

__all__ = ["PushResult", "push", "push_checked"]

ROLL_BACK = "go back to the layout before with moeplan rollback"


def push(
    client: EngineClient,
    layout: Layout,
    *,
    history: LayoutHistory | None,
    expected_hash: str | None = None,
    dry_run: bool = False,
    layers_per_chunk: int | None = None,
    pause_s: float = 0.0,
    timeout_s: float = PUSH_TIMEOUT_S,
) -> PushResult:
    """Push a layout into an engine and verify it by reading the engine.

    Parameters
    ----------
    client
    layout
        All decoder layers, as many slots as the engine has.
    history
        Where the layout before is remembered for :func:`profiler.engine.rollback.rollback`; None keeps it only in
        the result.
    expected_hash
        Refused unless the engine runs this layout. Whether given or not, a layout that somebody else pushes
        between check and push is never overwritten.
    dry_run
        Ask the engine what it would do; nothing moves.
    layers_per_chunk
        Layers applied between two steps, None for all at once.
    pause_s
        Seconds of serving between two chunks.
    timeout_s
        For the whole push, without its pauses.

    Raises
    ------
    EngineError, LayoutMismatch, SlotCountMismatch
        As :func:`profiler.engine.preflight.preflight`: nothing has moved.
    LayoutHashMismatch, EngineBusy
        The engine runs another layout than expected, or somebody else is pushing: nothing has moved.
    ApplyStalled
        The answer was lost, and the engine says for longer than ``timeout_s`` that the push is under way.
    PartialApply
        A chunk failed. Its error lists the layers that are new and old.
    EngineRestarted
        The engine was started anew during the push; what it runs now is in the sentence.
    PostPushCheckFailed
        The engine does not run what was pushed, on every rank, with the right weights.
    WeightsChanged
        Somebody has updated the engine's weights meanwhile, so they cannot be checked.
    OutputNotWritable
        The history cannot be written: nothing has moved.
    """
    found = preflight(client, layout)
    current = found.placement.layout_hash
    if expected_hash is not None and expected_hash != current:
        raise LayoutHashMismatch(f"{client.url} runs layout {current}, not the expected {expected_hash}.")
    request = PushRequest(
        map_LP=layout.slot_to_expert_LP,
        expected_layout_hash=current,
        layers_per_chunk=layers_per_chunk,
        pause_s=pause_s,
        dry_run=dry_run,
    )
    weights = expert_weights(found.placement)
    return push_checked(client, found, request, weights=weights, history=history, timeout_s=timeout_s)


def push_checked(
    client: EngineClient,
    found: Preflight,
    request: PushRequest,
    *,
    weights: ExpertWeights | None,
    history: LayoutHistory | None,
    timeout_s: float,
) -> PushResult:
    """Carry out a push that has passed its preflight, with the weights that every expert must keep.

    Parameters and errors are those of :func:`push`.
    """
    _check_pace(request)
    before = found.placement
    layout = Layout(request.map_LP, gpus=before.ep_size, experts=before.experts)
    limit_s = timeout_s + request.pause_s * _chunks(before, request)
    answer: PushAnswer | None = None
    status: PushStatus
    if request.dry_run:
        status, answer = "dry_run", client.put_placement(request, timeout_s=limit_s)
    elif before.layout_hash == layout.hash:
        verify_pushed(before, layout, weights=weights)
        status = "unchanged"
    else:
        with _remembering(history, client, before, request):
            answer = _answer_or_state(client, request, before, layout, limit_s=limit_s)
            after = client.placement(checksums=weights is not None)
            if answer is not None and answer.status == "partial":
                raise _in_between(before, after, layout, reason=answer.error)
            _require_same_weights(before, after)
            verify_pushed(after, layout, weights=weights)
        status = "applied"
    return PushResult(
        status=status,
        engine=before.engine,
        simulated=before.simulated,
        layout=layout,
        previous=Layout(before.map_LP, gpus=before.ep_size, experts=before.experts),
        expert_bytes=before.expert_bytes,
        answer=answer,
        weights_checked=weights is not None and status != "dry_run",
        notices=found.notices,
    )


def _require_same_weights(before: Placement, after: Placement) -> None:
    if after.weight_updates != before.weight_updates:
        raise WeightsChanged(
            f"the engine's weights were loaded anew during the push (update {after.weight_updates}, before "
            f"{before.weight_updates}), so what lies in its slots cannot be compared with before.",
            remedies=("push the same layout again: it is then checked against the new weights",),
        )


@contextmanager
def _remembering(
    history: LayoutHistory | None, client: EngineClient, before: Placement, request: PushRequest
) -> Iterator[None]:
    """Remember the layout before a push, then how the push ended; forget it again where nothing can have moved."""
    if history is None:
        yield
        return
    remembered = history.begin(client.url, before, request.map_LP)
    try:
        yield
    except (LayoutHashMismatch, EngineBusy, EngineRefused):
        history.forget(remembered)
        raise
    except EngineError as error:
        history.finish(remembered, "failed")
        error.remedies = error.remedies or (ROLL_BACK,)
        raise
    history.finish(remembered, "applied")


def _answer_or_state(
    client: EngineClient, request: PushRequest, before: Placement, layout: Layout, *, limit_s: float
) -> PushAnswer | None:
    """Send a push. Where its answer is lost, wait until the engine is done; return None when it has applied it all."""
    try:
        return client.put_placement(request, timeout_s=limit_s)
    except (EngineUnreachable, EngineFailed, EngineAnswerInvalid) as lost:
        after = _settled(client, lost, limit_s=limit_s)
        if after.layout_hash == layout.hash:
            return None
        if after.layout_hash == before.layout_hash:
            raise type(lost)(f"{lost.detail} The engine still runs layout {before.layout_hash[:12]}.") from None
        raise _in_between(before, after, layout, reason=lost.detail) from None


def _settled(client: EngineClient, lost: EngineError, *, limit_s: float) -> Placement:
    """Read the layout once no push is under way any more."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            placement = client.placement()
        except EngineError as error:
            raise type(lost)(
                f"{lost.detail} Whether it was applied is unknown: the layout cannot be read either. {error.detail}",
                remedies=("read the layout when the engine is back", ROLL_BACK),
            ) from None
        if not placement.push_in_progress:
            return placement
        if time.monotonic() > deadline_s:
            raise ApplyStalled(
                f"{lost.detail} After {limit_s:g} s more the engine says that the push is still under way; it runs "
                f"layout {placement.layout_hash[:12]}.",
                remedies=("look at the engine's log: a rank may hang", "read the layout later", ROLL_BACK),
            )
        time.sleep(0.2)


def _in_between(before: Placement, after: Placement, layout: Layout, *, reason: str) -> EngineError:
    """Tell by reading the engine, not by what it answered, what a push has left that is neither done nor undone.

    Returns
    -------
    EngineRestarted
        The engine is not the one that was asked: another shape, or a layout that no push has brought.
    PostPushCheckFailed
        A layer is neither new nor old: somebody else has pushed.
    PartialApply
        Every layer is either new or old.
    """
    if after.map_LP.shape != before.map_LP.shape or after.ep_size != before.ep_size:
        return EngineRestarted(
            f"{reason.rstrip('.')}; meanwhile the engine was started anew in another shape: {_shape(after)} instead of "
            f"{_shape(before)}. It runs layout {after.layout_hash[:12]}.",
            remedies=("plan for the engine as it is now",),
        )
    is_new_L = (after.map_LP == layout.slot_to_expert_LP).all(axis=1)
    is_old_L = (after.map_LP == before.map_LP).all(axis=1)
    changing_L = (before.map_LP != layout.slot_to_expert_LP).any(axis=1)
    is_mixed = bool((is_new_L | is_old_L).all())
    if was_restarted(after, before) or (not is_mixed and after.generation == before.generation):
        return EngineRestarted(
            f"{reason.rstrip('.')}; meanwhile the engine was started anew: it runs layout {after.layout_hash[:12]}, "
            "which no push has brought.",
            remedies=("push again", "start the engine with the layout: moeplan export PLAN --print-restart"),
        )
    if not is_mixed:
        return PostPushCheckFailed(
            f"{reason.rstrip('.')}; meanwhile somebody else has pushed: layout {after.layout_hash[:12]} runs, which is "
            f"neither {layout.hash[:12]} nor {before.layout_hash[:12]}.",
            remedies=("agree on who pushes, then push again",),
        )
    new_layers = tuple(np.flatnonzero(is_new_L & changing_L).tolist())
    old_layers = tuple(np.flatnonzero(is_old_L & changing_L).tolist())
    return PartialApply(
        f"the push stopped half way ({reason}): layers {list(new_layers)} run the new layout, layers "
        f"{list(old_layers)} the old one.",
        new_layers=new_layers,
        old_layers=old_layers,
        remedies=(ROLL_BACK, "push the same layout again"),
    )


def _shape(placement: Placement) -> str:
    return f"{placement.layers} layers of {placement.slots} slots on {placement.ep_size} ranks"


def _check_pace(request: PushRequest) -> None:
    if request.layers_per_chunk is not None and request.layers_per_chunk < 1:
        raise BadOption(f"layers_per_chunk is {request.layers_per_chunk}; it must be at least 1.")
    if not 0 <= request.pause_s <= MAX_PAUSE_S:
        raise BadOption(f"pause_s is {request.pause_s:g}; it must be 0 to {MAX_PAUSE_S:g} seconds.")


def _chunks(before: Placement, request: PushRequest) -> int:
    changing = changed_layers(before.map_LP, request.map_LP, among=range(before.layers))
    return len(chunks_of_layers(changing, layers_per_chunk=request.layers_per_chunk))
