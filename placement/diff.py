"""What going from one layout to another moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import BadOption, LayoutMismatch, SlotCountMismatch
from placement.layout import Layout
from placement.relabel import cheapest_gpu_relabelling, with_gpus_relabelled
from placement.topology import Topology


@dataclass(frozen=True)
class GpuMove:
    """Experts that one GPU gains and loses in one layer; as many are gained as lost, repeats for several slots."""

    layer: int
    gpu: int
    gained: tuple[int, ...]
    lost: tuple[int, ...]


@dataclass(frozen=True)
class LayoutDiff:
    """From one layout to another.

    Attributes
    ----------
    changed_slots : int
        Slots whose expert differs, as the maps stand.
    moved_slots : int
        Slots that must receive weights after the cheapest relabelling of slots inside each GPU: an expert that stays
        on its GPU moves nothing.
    moved_bytes : int or None
        ``moved_slots`` x the bytes of one expert; None when those are unknown.
    changed_L, moved_L : tuple of int
        The same by layer; 0 in layers that were left out.
    received_G, sent_G : tuple of int
        Slots that every GPU receives, and that it sends away or drops, over all layers. Equal, since no GPU's
        number of slots changes.
    moves : tuple of GpuMove
        Every layer and GPU with a change.
    new_gpu_of_G : tuple of int or None
        With GPU relabelling: GPU g of the second layout became GPU ``new_gpu_of_G[g]`` before counting.
    """

    changed_slots: int
    moved_slots: int
    moved_bytes: int | None
    changed_L: tuple[int, ...]
    moved_L: tuple[int, ...]
    received_G: tuple[int, ...]
    sent_G: tuple[int, ...]
    moves: tuple[GpuMove, ...]
    new_gpu_of_G: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def diff(
    a: Layout,
    b: Layout,
    topology: Topology | None = None,
    *,
    expert_bytes: int | None = None,
    relabel_gpus: bool = False,
    moe_layers: Sequence[int] | None = None,
) -> LayoutDiff:
    """Compare two layouts of one model on the same GPUs.

    Parameters
    ----------
    a, b
        From and to; both with the same layers, experts, GPUs and slots.
    topology
        Needed only for relabelling on several nodes; without it the GPUs count as one node.
    expert_bytes
        Bytes of one expert's weights in one layer.
    relabel_gpus
        First give the GPUs of ``b`` the labels that move least, the same ones in all layers; on several nodes only
        labels that keep the GPUs of a node together. Under uniform sources, nearest-dynamic or even dispatch,
        relabelling changes no metric; under measured sources or nearest-static dispatch it does: score it again.
    moe_layers
        Layers that have experts, all by default. Rows of dense layers hold no weights, so leave them out where
        they are known.

    Raises
    ------
    LayoutMismatch, SlotCountMismatch
        The layouts do not describe the same model on the same slots, or the topology has another number of GPUs.
    BadOption
        ``expert_bytes`` below 1, or a layer that does not exist.
    """
    _check_same_shape(a, b)
    counted_L = _counted_layers(a, moe_layers)
    if expert_bytes is not None and expert_bytes < 1:
        raise BadOption(f"expert_bytes is {expert_bytes}; one expert has at least 1 byte.")
    if relabel_gpus:
        new_gpu_of_G = cheapest_gpu_relabelling(a, b, topology or Topology(a.gpus), counted_L=counted_L)
        found = diff(a, with_gpus_relabelled(b, new_gpu_of_G), expert_bytes=expert_bytes, moe_layers=moe_layers)
        return replace(found, new_gpu_of_G=new_gpu_of_G)

    more_LEG = (b.replicas_LEG - a.replicas_LEG) * counted_L[:, None, None]
    gained_LEG, lost_LEG = np.maximum(more_LEG, 0), np.maximum(-more_LEG, 0)
    changed_L = ((a.slot_to_expert_LP != b.slot_to_expert_LP) & counted_L[:, None]).sum(axis=1)
    moved_slots = int(gained_LEG.sum())
    return LayoutDiff(
        changed_slots=int(changed_L.sum()),
        moved_slots=moved_slots,
        moved_bytes=None if expert_bytes is None else moved_slots * expert_bytes,
        changed_L=tuple(changed_L.tolist()),
        moved_L=tuple(gained_LEG.sum(axis=(1, 2)).tolist()),
        received_G=tuple(gained_LEG.sum(axis=(0, 1)).tolist()),
        sent_G=tuple(lost_LEG.sum(axis=(0, 1)).tolist()),
        moves=_moves(gained_LEG, lost_LEG),
    )


def align(layout: Layout, *, to: Layout) -> Layout:
    """Reorder slots inside each GPU so that as many as possible hold what they hold in ``to``.

    The result is what should be pushed: every expert stays on its GPU, and :func:`diff` counts no more changed than
    moved slots. It depends on the experts of each GPU only, not on their order in ``layout``.

    No metric changes: the engine's nearest rule goes by GPU and node, and the rank tables of static dispatch draw among
    an expert's replicas by their position, which reordering inside a GPU keeps. Only the slot ids that the engine
    reports change. (Relabelling GPUs, by contrast, changes what static dispatch draws.)

    Raises
    ------
    LayoutMismatch, SlotCountMismatch
        As in :func:`diff`.
    """
    _check_same_shape(layout, to)
    aligned_LP = np.empty_like(layout.slot_to_expert_LP)
    for layer in range(layout.layers):
        for gpu in range(layout.gpus):
            here = slice(gpu * layout.slots_per_gpu, (gpu + 1) * layout.slots_per_gpu)
            wanted = layout.slot_to_expert_LP[layer, here].tolist()
            present = to.slot_to_expert_LP[layer, here].tolist()
            aligned_LP[layer, here] = wanted if wanted == present else _keep_in_place(wanted, present)
    return replace(layout, slot_to_expert_LP=aligned_LP)


def _keep_in_place(wanted: list[int], present: list[int]) -> list[int]:
    to_place = Counter(wanted)
    kept: list[int | None] = []
    for expert in present:
        stays = to_place[expert] > 0
        kept.append(expert if stays else None)
        to_place[expert] -= stays
    incoming = iter(sorted(to_place.elements()))
    return [next(incoming) if expert is None else expert for expert in kept]


def _moves(gained_LEG: npt.NDArray[np.int16], lost_LEG: npt.NDArray[np.int16]) -> tuple[GpuMove, ...]:
    moves = []
    for layer, gpu in np.argwhere(gained_LEG.any(axis=1)).tolist():
        gained, lost = (
            tuple(np.repeat(np.arange(slots_E.size), slots_E).tolist())
            for slots_E in (gained_LEG[layer, :, gpu], lost_LEG[layer, :, gpu])
        )
        moves.append(GpuMove(layer, gpu, gained, lost))
    return tuple(moves)


def _counted_layers(layout: Layout, moe_layers: Sequence[int] | None) -> npt.NDArray[np.bool_]:
    if moe_layers is None:
        return np.ones(layout.layers, dtype=bool)
    counted_L = np.zeros(layout.layers, dtype=bool)
    for layer in moe_layers:
        if not 0 <= layer < layout.layers:
            raise BadOption(f"moe_layers names layer {layer}; there are layers 0 to {layout.layers - 1}.")
        counted_L[layer] = True
    return counted_L


def _check_same_shape(a: Layout, b: Layout) -> None:
    if (a.layers, a.experts) != (b.layers, b.experts):
        raise LayoutMismatch(
            f"the layouts describe different models: {a.layers} layers x {a.experts} experts and {b.layers} x "
            f"{b.experts}."
        )
    if (a.gpus, a.slots) != (b.gpus, b.slots):
        raise SlotCountMismatch(
            f"the layouts have {a.slots} slots on {a.gpus} GPUs and {b.slots} slots on {b.gpus}; only layouts for the "
            "same slots can be compared."
        )
