"""Checks after a push: the engine is read again, its map and what lies in its slots."""

from __future__ import annotations

from collections.abc import Mapping

from placement.layout import Layout
from profiler.engine.contract import Placement
from profiler.engine.preflight import check_ranks_agree
from profiler.errors import EngineRestarted, PostPushCheckFailed

ExpertWeights = Mapping[str, tuple[Mapping[int, str], ...]]
"""For every tensor and layer the checksum of each expert's weights; empty for dense layers."""


def expert_weights(placement: Placement) -> ExpertWeights | None:
    """Read off which weights every expert has, None where the engine makes no checksums.

    Raises
    ------
    PostPushCheckFailed
        Two slots that should hold the same expert hold other weights.
    """
    if placement.checksums is None:
        return None
    return {
        tensor: tuple(_weights_of_layer(tensor, layer, row, placement) for layer, row in enumerate(rows))
        for tensor, rows in placement.checksums.items()
    }


def verify_pushed(after: Placement, layout: Layout, *, weights: ExpertWeights | None) -> None:
    """Compare the engine's map with the layout pushed, and what lies in every slot with its expert's weights.

    A map alone proves nothing: an engine that changes its map and leaves weights or scales behind answers
    wrongly. So the checksum of every tensor of every slot must be the one that its expert had before the push.

    Parameters
    ----------
    after
        Read after the push, with checksums.
    layout
    weights
        From before the push; None where the engine makes no checksums.

    Raises
    ------
    PostPushCheckFailed
        Naming the first layer, slot or rank that is not as it should be.
    EngineRestarted
        The engine has another shape than before.
    """
    if (after.map_LP.shape, after.ep_size) != (layout.slot_to_expert_LP.shape, layout.gpus):
        raise EngineRestarted(
            f"the engine was started anew during the push: it has {after.layers} layers of {after.slots} slots on "
            f"{after.ep_size} ranks now and runs layout {after.layout_hash[:12]}; plan for it anew."
        )
    check_ranks_agree(after)
    if after.layout_hash != layout.hash:
        wrong = [
            layer for layer in range(layout.layers) if (after.map_LP[layer] != layout.slot_to_expert_LP[layer]).any()
        ]
        raise PostPushCheckFailed(
            f"the engine runs layout {after.layout_hash[:12]} after the push of {layout.hash[:12]}; "
            f"{len(wrong)} of {layout.layers} layers differ, the first is {wrong[0]}."
        )
    if weights is None:
        return
    found = after.checksums or {}
    if weights.keys() != found.keys():
        raise PostPushCheckFailed(
            f"the engine reported checksums of {sorted(weights)} before the push and of {sorted(found)} after it."
        )
    for tensor in sorted(weights):
        for layer, expected in enumerate(weights[tensor]):
            for slot, checksum in enumerate(found[tensor][layer]):
                expert = int(after.map_LP[layer, slot])
                if checksum != expected.get(expert):
                    raise PostPushCheckFailed(
                        f"layer {layer}, slot {slot} should hold expert {expert}, but its {tensor} is another one's."
                    )


def _weights_of_layer(tensor: str, layer: int, row: tuple[str, ...], placement: Placement) -> Mapping[int, str]:
    weights: dict[int, str] = {}
    for slot, checksum in enumerate(row):
        expert = int(placement.map_LP[layer, slot])
        if weights.setdefault(expert, checksum) != checksum:
            raise PostPushCheckFailed(
                f"layer {layer}, slot {slot} should hold expert {expert}, but its {tensor} differs from that of "
                "another slot with the same expert: the engine's weights were wrong before this push."
            )
    return weights
