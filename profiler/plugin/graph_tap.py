"""Routing inside captured CUDA graphs.

No Python runs while a graph is replayed, so what shall be known afterwards must be written by the graph itself. Each
MoE layer copies its expert ids into a buffer (one small kernel); the first one also writes how many rows there are and
counts the pass, so that a later step whose graph wrote nothing is not taken for this one. After a step that is recorded
the buffer is copied as a whole: every launch costs a short decode step the better part of a per cent, bytes cost
nothing. Buffers never move: a graph keeps writing to the one it was captured with, so when larger graphs need more room
a second buffer joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ROWS_AT, PASSES_AT = -2, -1
"""Where a buffer holds the rows of the last pass, and the number of passes that wrote to it."""

_TAIL = 2


@dataclass
class TapBuffer:
    """Expert ids of the last pass.

    Attributes
    ----------
    flat_B : tensor
        int32; the ids, then the rows and the number of passes (``ROWS_AT``, ``PASSES_AT``).
    layers, rows, top_k : int
        Shape of the ids.
    """

    flat_B: Any
    layers: int
    rows: int
    top_k: int

    @property
    def ids_LRK(self) -> Any:
        return self.ids_of(self.flat_B)

    def ids_of(self, flat: Any) -> Any:
        """Return the ids in a buffer or in a stack of its copies, as int32 [..., layers, rows, top-k]."""
        return flat[..., :-_TAIL].unflatten(-1, (self.layers, self.rows, self.top_k))


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
        size = self.layers * rows * self.top_k + _TAIL
        empty_B = torch.zeros(size, dtype=torch.int32, device=topk_ids_RK.device)
        self.buffers.append(TapBuffer(empty_B, self.layers, rows, self.top_k))

    def write(self, layer: int, topk_ids_RK: Any) -> None:
        """Become part of the graph that is being captured; without room the layer stays unseen."""
        rows = int(topk_ids_RK.shape[0])
        buffer = next((held for held in reversed(self.buffers) if held.rows >= rows), None)
        if buffer is None or topk_ids_RK.shape[1] < self.top_k or layer >= self.layers:
            return
        if layer not in self.written_layers:
            self.written_layers = sorted([*self.written_layers, layer])
        if layer == self.written_layers[0]:
            buffer.flat_B[ROWS_AT].fill_(rows)
            buffer.flat_B[PASSES_AT].add_(1)
        buffer.ids_LRK[layer, :rows].copy_(topk_ids_RK[:, : self.top_k])

    def copies(self) -> list[Any]:
        """Return every buffer as it is now."""
        return [buffer.flat_B.clone() for buffer in self.buffers]
