"""Routed ids of a few steps, counted together.

Counting takes about ten small kernels whatever the number of ids. Launched in every step they would cost a decode
step of a few milliseconds several per cent; a step is logged with one copy, and a batch of steps is counted at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profiler.engine.contract_demand import PHASES
from profiler.plugin.graph_tap import GraphTap, TapBuffer
from profiler.plugin.own_rows import own_bounds
from profiler.plugin.rank_view import RankView

LOGGED_IDS = 1 << 20
"""Ids held before they are counted: 4 MiB, and the count needs some ten times that for a moment."""


@dataclass
class _GraphSteps:
    """Copies of a buffer's first rows, as many in every one."""

    shape_LRK: tuple[int, int, int]
    layers: tuple[int, ...]
    copies: list[Any] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


@dataclass
class StepLog:
    """Logs steps and adds them to ``counts_FLE``.

    Attributes
    ----------
    counts_FLE : tensor
        int64 [phases, layers, experts + 1]; padding (-1) and fused shared experts (ids from E on) go to the last
        column.
    view : RankView
    """

    counts_FLE: Any
    view: RankView
    _rows: list[tuple[int, int, Any]] = field(default_factory=list)
    _graphs: dict[tuple[int, int, tuple[int, ...]], _GraphSteps] = field(default_factory=dict)
    _ids: int = 0

    def add_rows(self, phase: int, layer: int, ids_TK: Any) -> None:
        """Log own rows of one layer, as they are now."""
        self._rows.append((phase, layer, ids_TK.flatten().clone()))
        self._ids += ids_TK.numel()

    def add_graph(self, phase: int, tokens: int, tap: GraphTap, *, layers: tuple[int, ...]) -> None:
        """Log what a replayed graph wrote for some layers."""
        for number, buffer in enumerate(tap.buffers):
            rows = min(self._rows_needed(tokens, buffer), buffer.rows)
            shape_LRK = (tap.layers, rows, tap.top_k)
            steps = self._graphs.setdefault((number, rows, layers), _GraphSteps(shape_LRK, layers))
            steps.copies.append(buffer.copied(rows))
            steps.phases.append(phase)
            steps.tokens.append(tokens)
            self._ids += math.prod(shape_LRK)

    def _rows_needed(self, tokens: int, buffer: TapBuffer) -> int:
        """Return how many rows own tokens may stand in; powers of two, so that few sizes are told apart."""
        if self.view.dp_attention and not self.view.all_to_all:
            return buffer.rows
        return 1 << max(tokens - 1, 0).bit_length()

    def end_step(self) -> None:
        """Count when enough was logged."""
        if self._ids >= LOGGED_IDS:
            self.count()

    def count(self) -> None:
        """Count everything that was logged."""
        if self._rows:
            self._count_rows()
        for steps in self._graphs.values():
            self._count_graphs(steps)
        self._rows.clear()
        self._graphs.clear()
        self._ids = 0

    @property
    def _experts(self) -> int:
        return int(self.counts_FLE.shape[2]) - 1

    def _count_rows(self) -> None:
        import torch

        _phases, layers, columns = self.counts_FLE.shape
        first_M = [(phase * layers + layer) * columns for phase, layer, _ids in self._rows]
        length_M = [int(ids.numel()) for _phase, _layer, ids in self._rows]
        offset_N = torch.repeat_interleave(
            self._on_device(first_M), self._on_device(length_M), output_size=sum(length_M)
        )
        self._add(offset_N, torch.cat([ids for _phase, _layer, ids in self._rows]))

    def _count_graphs(self, steps: _GraphSteps) -> None:
        import torch

        _phases, layers, columns = self.counts_FLE.shape
        flat_NC = torch.stack(steps.copies)
        ids_NLRK = flat_NC[:, :-1].reshape(-1, *steps.shape_LRK)
        rows_N = flat_NC[:, -1].to(torch.int64)
        start, end = own_bounds(self.view, self._on_device(steps.tokens), rows=rows_N, padded_tokens=None)
        start_N, end_N = torch.zeros_like(rows_N) + start, torch.minimum(end, rows_N)
        row_R = torch.arange(steps.shape_LRK[1], device=flat_NC.device)
        own_NR = (row_R >= start_N[:, None]) & (row_R < end_N[:, None])
        counted = np.isin(np.arange(layers), steps.layers)
        first_NL = [[(phase * layers + layer) * columns for layer in range(layers)] for phase in steps.phases]
        keep_NLRK = own_NR[:, None, :, None] & self._on_device(counted.tolist()).bool()[None, :, None, None]
        ids_NLRK = torch.where(keep_NLRK, ids_NLRK, -1)
        self._add(self._on_device(first_NL)[:, :, None, None].expand(ids_NLRK.shape), ids_NLRK)

    def _add(self, offset: Any, expert_ids: Any) -> None:
        """Add one to the cell of every id; ``offset`` is the first cell of its phase and layer."""
        import torch

        ids = expert_ids.to(torch.int64)
        ids = torch.where((ids < 0) | (ids >= self._experts), self._experts, ids)
        cells_N = (offset + ids).flatten()
        ones_N = torch.ones((), dtype=torch.int64, device=cells_N.device).expand(cells_N.shape)
        self.counts_FLE.view(-1).scatter_add_(0, cells_N, ones_N)

    def _on_device(self, values: Any) -> Any:
        """Copy host integers to the device without waiting for it, which takes pinned memory."""
        import torch

        host = torch.tensor(values, dtype=torch.int64)
        device = self.counts_FLE.device
        return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def empty_counts(*, layers: int, experts: int, device: Any) -> Any:
    """Return zeros for :attr:`StepLog.counts_FLE`."""
    import torch

    return torch.zeros((len(PHASES), layers, experts + 1), dtype=torch.int64, device=device)
