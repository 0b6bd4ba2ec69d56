"""What lies in the slots: stand-ins for the experts' weights, which a push must carry along with the map."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

TENSORS = ("w13_weight", "w2_weight")
"""Names SGLang gives an expert's two weight tensors."""


class SlotWeights:
    """Which expert's tensors are in every slot, apart from what the map says.

    Parameters
    ----------
    map_LP : ndarray
        int32 [L, P], the layout at start, when map and weights agree.
    moe_layers : tuple of int
        Layers with experts.
    """

    def __init__(self, map_LP: npt.NDArray[np.int32], *, moe_layers: tuple[int, ...]) -> None:
        self._moe_layers = frozenset(moe_layers)
        self._held_LP = {tensor: map_LP.copy() for tensor in TENSORS}

    def move(
        self,
        old_LP: npt.NDArray[np.int32],
        new_LP: npt.NDArray[np.int32],
        *,
        layers: Iterable[int],
        left_behind: Collection[str] = (),
    ) -> None:
        """Fill every slot that changes from the first slot that has its expert by the old map."""
        for layer in layers:
            experts, first_slot = np.unique(old_LP[layer], return_index=True)
            from_P = first_slot[np.searchsorted(experts, new_LP[layer])]
            stays_P = old_LP[layer] == new_LP[layer]
            for tensor, held_LP in self._held_LP.items():
                if tensor not in left_behind:
                    held_LP[layer] = np.where(stays_P, held_LP[layer], held_LP[layer, from_P])

    def checksums(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Return a text for every tensor, layer and slot; equal weights give equal texts."""
        return {
            tensor: tuple(
                tuple(_checksum(tensor, layer, expert) for expert in row_P) if layer in self._moe_layers else ()
                for layer, row_P in enumerate(held_LP.tolist())
            )
            for tensor, held_LP in self._held_LP.items()
        }


def _checksum(tensor: str, layer: int, expert: int) -> str:
    return hashlib.blake2b(f"{tensor}/{layer}/{expert}".encode(), digest_size=8).hexdigest()
