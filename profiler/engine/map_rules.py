"""Rules for a ``physical_to_logical_map`` that hold on both sides of the wire: checks, its hash, what a push changes.

``placement.layout.Layout`` states the same rules for planning. They are written a second time here because the
engine side may import only the standard library and numpy, and so that a fault in one is seen by the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiler.engine.json_fields import ContractViolation, shown


def layout_hash(map_LP: npt.NDArray[np.integer]) -> str:
    """Return the SHA-256 that names a map: 64 hex digits.

    Hashed are the bytes of ``moeplan-layout-1 <layers> <slots>``, a line feed, and the expert ids as
    little-endian int32, layer by layer.
    """
    layers, slots = map_LP.shape
    header = b"moeplan-layout-1 %d %d\n" % (layers, slots)
    return hashlib.sha256(header + np.ascontiguousarray(map_LP, dtype="<i4").tobytes()).hexdigest()


def map_from_json(value: object, where: str) -> npt.NDArray[np.int32]:
    """Read a map out of parsed JSON: a list of layers, each a list of expert ids.

    Raises
    ------
    ContractViolation
        ``BAD_MAP_SHAPE`` naming the layer (and slot) at fault.
    """
    if not isinstance(value, list) or not value:
        raise _bad_shape(f"{where} is {shown(value)}; it must be a list of layers, each a list of expert ids.")
    for layer, row in enumerate(value):
        if not isinstance(row, list) or not row:
            raise _bad_shape(f"{where}, layer {layer} is {shown(row)}; it must be a list of expert ids.")
        if len(row) != len(value[0]):
            raise _bad_shape(f"{where}, layer {layer} has {len(row)} slots but layer 0 has {len(value[0])}.")
        for slot, expert in enumerate(row):
            if isinstance(expert, bool) or not isinstance(expert, int) or abs(expert) >= 2**31:
                raise _bad_shape(f"{where}, layer {layer}, slot {slot} is {shown(expert)}; expert ids are integers.")
    return np.asarray(value, dtype=np.int32)


def check_map(map_LP: npt.NDArray[np.int32], *, layers: int, slots: int, experts: int) -> None:
    """Refuse a map that the engine described by the sizes cannot run.

    Raises
    ------
    ContractViolation
        With code ``LAYOUT_MISMATCH`` (layers), ``SLOT_COUNT_MISMATCH``, ``EXPERT_ID_RANGE`` or ``EXPERT_MISSING``.
    """
    if map_LP.shape[0] != layers:
        raise ContractViolation(
            f"the map has {map_LP.shape[0]} layers; this engine has {layers} decoder layers, dense ones included.",
            code="LAYOUT_MISMATCH",
        )
    if map_LP.shape[1] != slots:
        raise ContractViolation(
            f"the map has {map_LP.shape[1]} slots per layer; this engine has {slots}.", code="SLOT_COUNT_MISMATCH"
        )
    outside = np.argwhere((map_LP < 0) | (map_LP >= experts))
    if outside.size:
        layer, slot = (int(value) for value in outside[0])
        raise ContractViolation(
            f"layer {layer}, slot {slot} names expert {int(map_LP[layer, slot])}; ids run from 0 to {experts - 1}.",
            code="EXPERT_ID_RANGE",
        )
    for layer, row_P in enumerate(map_LP):
        missing = np.flatnonzero(np.bincount(row_P, minlength=experts) == 0)
        if missing.size:
            raise ContractViolation(
                f"layer {layer} has no slot for expert {int(missing[0])} ({len(missing)} missing in this layer).",
                code="EXPERT_MISSING",
            )


@dataclass(frozen=True)
class SlotChanges:
    """What going from one map to another rewrites.

    Attributes
    ----------
    changed_slots : int
        Slots that hold another expert afterwards.
    moved_slots : int
        Those of them whose expert the GPU did not hold before: their weights come from another GPU.
    """

    changed_slots: int
    moved_slots: int


def slot_changes(
    old_LP: npt.NDArray[np.int32], new_LP: npt.NDArray[np.int32], *, layers: Sequence[int], gpus: int
) -> SlotChanges:
    """Count the slots that change in some layers; copies inside a GPU are not moves."""
    slots_per_gpu = old_LP.shape[1] // gpus
    changed = moved = 0
    for layer in layers:
        changed += int(np.count_nonzero(old_LP[layer] != new_LP[layer]))
        for gpu in range(gpus):
            own = slice(gpu * slots_per_gpu, (gpu + 1) * slots_per_gpu)
            held = Counter(old_LP[layer, own].tolist())
            wanted = Counter(new_LP[layer, own].tolist())
            moved += sum(count for expert, count in wanted.items() if expert not in held)
    return SlotChanges(changed_slots=changed, moved_slots=moved)


def changed_layers(
    old_LP: npt.NDArray[np.int32], new_LP: npt.NDArray[np.int32], *, among: Sequence[int]
) -> tuple[int, ...]:
    """Return those of some layers in which the maps differ, ascending."""
    return tuple(layer for layer in sorted(among) if not np.array_equal(old_LP[layer], new_LP[layer]))


def chunks_of_layers(layers: Sequence[int], *, layers_per_chunk: int | None) -> tuple[tuple[int, ...], ...]:
    """Cut layers into chunks that are applied between two steps each; None means all in one chunk."""
    size = layers_per_chunk or max(len(layers), 1)
    return tuple(tuple(layers[start : start + size]) for start in range(0, len(layers), size))


def _bad_shape(detail: str) -> ContractViolation:
    return ContractViolation(detail, code="BAD_MAP_SHAPE")
