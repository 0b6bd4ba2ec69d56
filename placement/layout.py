"""Which expert every slot holds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from placement.errors import BadMapShape, BadOption, ExpertIdRange, ExpertMissing, SlotsNotDivisible


@dataclass(frozen=True, eq=False)
class Layout:
    """SGLang's ``physical_to_logical_map`` with the sizes that give it meaning.

    Attributes
    ----------
    slot_to_expert_LP : ndarray
        int32 [L, P], read-only; slot ``p`` is on GPU ``p // slots_per_gpu``.
    gpus : int
        Number of GPUs, a divisor of P.
    experts : int
        Number of logical experts; every one has at least one slot in every layer.

    Raises
    ------
    BadMapShape, ExpertIdRange, ExpertMissing, SlotsNotDivisible
        Naming layer, slot and expert.
    """

    slot_to_expert_LP: npt.NDArray[np.int32]
    gpus: int
    experts: int

    def __post_init__(self) -> None:
        slots_LP = np.asarray(self.slot_to_expert_LP)
        if slots_LP.ndim != 2 or 0 in slots_LP.shape:
            raise BadMapShape(f"the map has shape {slots_LP.shape}; it must be [layers, slots].")
        if slots_LP.dtype.kind not in "iu":
            raise BadMapShape(f"the map holds {slots_LP.dtype} values; expert ids are integers.")
        if self.gpus < 1 or self.experts < 1:
            raise BadOption(f"got {self.gpus} GPUs and {self.experts} experts; both must be at least 1.")
        if slots_LP.shape[1] % self.gpus:
            raise SlotsNotDivisible(
                f"{slots_LP.shape[1]} slots do not divide by {self.gpus} GPUs; the nearest multiples are "
                f"{slots_LP.shape[1] // self.gpus * self.gpus} and {(slots_LP.shape[1] // self.gpus + 1) * self.gpus}."
            )
        _check_ids(slots_LP, experts=self.experts)
        frozen = np.array(slots_LP, dtype=np.int32, order="C")
        frozen.flags.writeable = False
        object.__setattr__(self, "slot_to_expert_LP", frozen)

    @classmethod
    def of_any_width(cls, slots_LP: npt.NDArray[np.integer[Any]], *, gpus: int, experts: int) -> Layout:
        """Build a layout of ids that were read as other integers: judged as they are, and only then made int32."""
        return cls(cast("npt.NDArray[np.int32]", slots_LP), gpus=gpus, experts=experts)

    @property
    def layers(self) -> int:
        return int(self.slot_to_expert_LP.shape[0])

    @property
    def slots(self) -> int:
        return int(self.slot_to_expert_LP.shape[1])

    @property
    def slots_per_gpu(self) -> int:
        return self.slots // self.gpus

    @cached_property
    def replicas_LEG(self) -> npt.NDArray[np.int16]:
        """Number of slots of expert e on GPU g, int16 [L, E, G]; above 1 only where a GPU holds an expert twice."""
        counts = np.zeros((self.layers, self.experts, self.gpus), dtype=np.int16)
        layer_LP = np.arange(self.layers)[:, None]
        gpu_P = np.arange(self.slots) // self.slots_per_gpu
        np.add.at(counts, (layer_LP, self.slot_to_expert_LP, gpu_P[None, :]), 1)
        counts.flags.writeable = False
        return counts

    @cached_property
    def hash(self) -> str:
        """SHA-256 over shape and map, as 64 hex digits: the ``layout_hash`` that engines report."""
        digest = hashlib.sha256(f"moeplan-layout-1 {self.layers} {self.slots}\n".encode())
        digest.update(self.slot_to_expert_LP.astype("<i4").tobytes())
        return digest.hexdigest()

    def duplicated_slots(self) -> int:
        """Count slots that repeat an expert which their GPU already holds: memory without use."""
        return int(np.maximum(self.replicas_LEG - 1, 0).sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return (
            self.gpus == other.gpus
            and self.experts == other.experts
            and np.array_equal(self.slot_to_expert_LP, other.slot_to_expert_LP)
        )

    def __hash__(self) -> int:
        return hash((self.gpus, self.experts, self.hash))


def layout_from_hosts(hosts_LGS: Sequence[Sequence[Sequence[int]]], *, experts: int) -> Layout:
    """Build a layout from the experts of every GPU: ``hosts_LGS[layer][gpu]`` lists ``slots_per_gpu`` experts.

    Raises
    ------
    BadMapShape
        Naming the first layer or GPU whose length differs from the first one's.
    """
    if not hosts_LGS or not hosts_LGS[0]:
        raise BadMapShape("the map has no layers or no GPUs.")
    gpus, slots_per_gpu = len(hosts_LGS[0]), len(hosts_LGS[0][0])
    for layer, hosts_GS in enumerate(hosts_LGS):
        if len(hosts_GS) != gpus:
            raise BadMapShape(f"layer {layer} lists {len(hosts_GS)} GPUs, layer 0 lists {gpus}.")
        for gpu, hosts_S in enumerate(hosts_GS):
            if len(hosts_S) != slots_per_gpu:
                raise BadMapShape(
                    f"layer {layer}, GPU {gpu} has {len(hosts_S)} experts; every GPU has as many as the first, "
                    f"{slots_per_gpu}."
                )
    return Layout(np.asarray(hosts_LGS).reshape(len(hosts_LGS), gpus * slots_per_gpu), gpus=gpus, experts=experts)


def _check_ids(slots_LP: npt.NDArray[np.integer], *, experts: int) -> None:
    bad = np.argwhere((slots_LP < 0) | (slots_LP >= experts))
    if bad.size:
        layer, slot = (int(value) for value in bad[0])
        raise ExpertIdRange(
            f"layer {layer}, slot {slot} names expert {int(slots_LP[layer, slot])}; ids run from 0 to {experts - 1}."
        )
    present_LE = np.zeros((slots_LP.shape[0], experts), dtype=bool)
    present_LE[np.arange(slots_LP.shape[0])[:, None], slots_LP] = True
    missing = np.argwhere(~present_LE)
    if missing.size:
        layer, expert = (int(value) for value in missing[0])
        raise ExpertMissing(
            f"layer {layer} has no slot for expert {expert} ({len(missing)} missing in all); every expert needs one."
        )
