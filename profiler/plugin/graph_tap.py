"""Routing inside captured CUDA graphs.

No Python runs while a graph is replayed, so what shall be known afterwards must be written by the graph itself. Each
MoE layer copies its expert ids into a buffer (one small kernel), the first one also writes how many rows there are.
After a step the recorder counts what lies there. Buffers never move: a graph keeps writing to the one it was
captured with, so when larger graphs need more room a second buffer joins, and the row counts, cleared before each
step, tell which one was written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Buffer:
    ids_LRK: Any
    rows: Any


@dataclass
class GraphTap:
    """Buffers of expert ids by layer.

    Attributes
    ----------
    layers, top_k : int
        Decoder layers, and routed experts per token.
    written_layers : list of int
        Layers that were captured, ascending.
    """

    layers: int
    top_k: int
    written_layers: list[int] = field(default_factory=list)
    _buffers: list[_Buffer] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Device memory held."""
        return sum(buffer.ids_LRK.numel() * buffer.ids_LRK.element_size() for buffer in self._buffers)

    def make_room(self, topk_ids_RK: Any) -> None:
        """Have a buffer for so many rows; called in the warm-up runs before a capture, never inside one."""
        import torch

        rows = int(topk_ids_RK.shape[0])
        if self._buffers and self._buffers[-1].ids_LRK.shape[1] >= rows:
            return
        device = topk_ids_RK.device
        ids_LRK = torch.zeros((self.layers, rows, self.top_k), dtype=torch.int32, device=device)
        self._buffers.append(_Buffer(ids_LRK, torch.zeros((), dtype=torch.int64, device=device)))

    def write(self, layer: int, topk_ids_RK: Any) -> None:
        """Become part of the graph that is being captured; without room the layer stays unseen."""
        rows = int(topk_ids_RK.shape[0])
        buffer = next((held for held in reversed(self._buffers) if held.ids_LRK.shape[1] >= rows), None)
        if buffer is None or topk_ids_RK.shape[1] < self.top_k or layer >= self.layers:
            return
        if layer not in self.written_layers:
            self.written_layers = sorted([*self.written_layers, layer])
        if layer == self.written_layers[0]:
            buffer.rows.fill_(rows)
        buffer.ids_LRK[layer, :rows].copy_(topk_ids_RK[:, : self.top_k])

    def clear(self) -> None:
        """Forget the last step's rows."""
        for buffer in self._buffers:
            buffer.rows.zero_()

    def captured(self) -> list[tuple[Any, Any]]:
        """Return ids [layers, rows, top-k] and the scalar row count of every buffer; 0 rows where not written."""
        return [(buffer.ids_LRK, buffer.rows) for buffer in self._buffers]
