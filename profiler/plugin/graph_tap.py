"""Routing inside captured CUDA graphs.

No Python runs while a graph is replayed, so what shall be known afterwards must be written by the graph itself. Each
MoE layer copies its expert ids into a buffer (one small kernel), the first one also writes how many rows there are.
After a step that is recorded the buffer's rows are copied and its row count is cleared, so that a later step whose
graph wrote nothing is not taken for this one. Buffers never move: a graph keeps writing to the one it was captured
with, so when larger graphs need more room a second buffer joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TapBuffer:
    """Expert ids int32 [layers, rows, top-k], and how many rows the graph of the last step wrote, int32 [1]."""

    ids_LRK: Any
    row_count: Any

    @property
    def rows(self) -> int:
        return int(self.ids_LRK.shape[1])

    def copied(self, rows: int) -> Any:
        """Return the first rows' ids and, behind them, the row count as one flat tensor."""
        import torch

        return torch.cat([self.ids_LRK[:, :rows].flatten(), self.row_count])


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
        empty = torch.zeros((self.layers, rows, self.top_k), dtype=torch.int32, device=topk_ids_RK.device)
        self.buffers.append(TapBuffer(empty, torch.zeros_like(empty[0, 0, :1])))

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
        buffer.ids_LRK[layer, :rows].copy_(topk_ids_RK[:, : self.top_k])

    def clear(self) -> None:
        """Forget the last step."""
        for buffer in self.buffers:
            buffer.row_count.zero_()
