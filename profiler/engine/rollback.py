"""Taking a push back."""

from __future__ import annotations

from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement
from profiler.engine.contract_push import PushRequest
from profiler.engine.history import LayoutHistory, RememberedPush
from profiler.engine.preflight import preflight
from profiler.engine.push import push_checked
from profiler.engine.push_result import PushResult
from profiler.engine.time_limits import PUSH_TIMEOUT_S
from profiler.engine.verify import ExpertWeights, expert_weights
from profiler.errors import NoPreviousLayout

SHORTEST_HASH = 8
"""Digits of a hash that name a layout on the command line."""


def rollback(
    client: EngineClient,
    *,
    history: LayoutHistory,
    to_hash: str | None = None,
    layers_per_chunk: int | None = None,
    pause_s: float = 0.0,
    timeout_s: float = PUSH_TIMEOUT_S,
) -> PushResult:
    """Push back a layout that the engine ran before, as remembered when it was replaced.

    A rollback is itself a push and remembered as one, so that rolling back twice returns to where one was.

    Parameters
    ----------
    to_hash
        The layout to return to (at least its first 8 digits); None takes the one before the last push, which also
        mends a push that was applied only in part.

    Raises
    ------
    NoPreviousLayout
        Nothing fitting is remembered, or somebody else has pushed since.
    EngineError
        As :func:`push`.
    """
    now = client.placement(checksums=False)
    pushes = history.pushes(client.url)
    target = _last_layout(now, pushes) if to_hash is None else _named_layout(to_hash, pushes)
    layout = Layout(target.map_LP, gpus=target.ep_size, experts=target.experts)
    found = preflight(client, layout)
    request = PushRequest(
        map_LP=layout.slot_to_expert_LP,
        expected_layout_hash=now.layout_hash,
        layers_per_chunk=layers_per_chunk,
        pause_s=pause_s,
    )
    weights = _trusted_weights(found.placement, pushes)
    return push_checked(client, found, request, weights=weights, history=history, timeout_s=timeout_s)


def _last_layout(now: Placement, pushes: tuple[RememberedPush, ...]) -> Placement:
    if not pushes:
        raise NoPreviousLayout("no push into this engine is remembered here, so no layout is known to go back to.")
    if not pushes[0].explains(now):
        raise NoPreviousLayout(
            f"the engine runs layout {now.layout_hash[:12]}, which the last push remembered here "
            f"({pushes[0].pushed_hash[:12]}) did not leave behind: somebody else has changed it. Name the layout to "
            "return to."
        )
    return pushes[0].before


def _named_layout(to_hash: str, pushes: tuple[RememberedPush, ...]) -> Placement:
    known = {push.before.layout_hash: push.before for push in reversed(pushes)}
    matching = [seen for digits, seen in known.items() if digits.startswith(to_hash.lower())]
    if len(to_hash) < SHORTEST_HASH or len(matching) != 1:
        listed = ", ".join(digits[:12] for digits in known) or "none"
        raise NoPreviousLayout(f"{to_hash!r} names no layout remembered for this engine; there are: {listed}.")
    return matching[0]


def _trusted_weights(before: Placement, pushes: tuple[RememberedPush, ...]) -> ExpertWeights | None:
    """Return each expert's weights, from before the last push where that one was never verified.

    After such a push the slots may hold anything, so they prove nothing about which weights are whose; unless the
    engine's weights were updated since, which fills every slot anew.
    """
    last = pushes[0] if pushes else None
    unverified = last is not None and last.outcome != "applied" and last.before.checksums is not None
    if last is not None and unverified and last.before.weight_updates == before.weight_updates:
        return expert_weights(last.before)
    return expert_weights(before)
