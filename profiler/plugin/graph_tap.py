"""Routing inside captured CUDA graphs.

No Python runs while a graph is replayed, so what shall be known afterwards must be written by the graph itself. Each
MoE layer copies its expert ids into a buffer (one small kernel), the first one also writes how many rows there are.
After a step that is recorded the buffer is copied once and its row count cleared, so that a later step whose graph
wrote nothing is not taken for this one. Buffers never move: a graph keeps writing to the one it was captured with, so
when larger graphs need more room a second buffer joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TapBuffer:
    """Ids [layers, rows, top-k] and, in the last cell, the number of rows written, as one int32 tensor."""

    flat: Any
    layers: int
    rows: int
    top_k: int
    row_count: Any = field(init=False)

    def __post_init__(self) -> None:
        self.row_count = self.flat[-1]  # a view, made once: it is cleared in every recorded step

    def ids_LRK(self, flat_N: Any) -> Any:
        """Return the ids of a copy (or of several copies, [copies, ...]) of :attr:`flat`."""
        return flat_N[..., :-1].unflatten(-1, (self.layers, self.rows, self.top_k))


@dataclass
class GraphTap:
    """Buffers of expert ids by layer.

    Attributes
    ----------
    layers, top_k : int
        Decoder layers, and routed experts per token.
    written_layers : list of int
        Layers that were captured, ascending.
    buffers : list of TapBuffer
    """

    layers: int
    top_k: int
    written_layers: list[int] = field(default_factory=list)
    buffers: list[TapBuffer] = field(default_factory=list)

    def make_room(self, topk_ids_RK: Any) -> None:
        """Have a buffer for so many rows; called in the warm-up runs before a capture, never inside one."""
        import torch

        rows = int(topk_ids_RK.shape[0])
        if self.buffers and self.buffers[-1].rows >= rows:
            return
        cells = self.layers * rows * self.top_k + 1
        flat = torch.zeros(cells, dtype=torch.int32, device=topk_ids_RK.device)
        self.buffers.append(TapBuffer(flat, self.layers, rows, self.top_k))

    def write(self, layer: int, topk_ids_RK: Any) -> None:
        """Become part of the graph that is being captured; without room the layer stays unseen."""
        rows = int(topk_ids_RK.shape[0])
        buffer = next((held for held in reversed(self.buffers) if held.rows >= rows), None)
        if buffer is None or topk_ids_RK.shape[1] < self.top_k or layer >= self.layers:
            return
        if layer not in self.written_layers:
            self.written_layers = sorted([*self.written_layers, layer])
        if layer == self.written_layers[0]:
            buffer.row_count.fill_(rows)
        buffer.ids_LRK(buffer.flat)[layer, :rows].copy_(topk_ids_RK[:, : self.top_k])

    def clear(self) -> None:
        """Forget the last step."""
        for buffer in self.buffers:
            buffer.row_count.zero_()
