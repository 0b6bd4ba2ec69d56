"""Routed ids of a few steps, counted together.

Counting takes about twenty small kernels whatever the number of ids. Launched in every step they would cost a decode
step of a few milliseconds several per cent; a step is logged with one copy, and a batch of steps is counted at once.

A step is logged in two parts: what it routed when it was launched, and, when the engine looks at its result, which of
its tokens the engine threw away. With the overlap schedule a step is launched before the engine knows which requests
ended in the one before, so that it computes a token more for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profiler.engine.contract_demand import PHASES
from profiler.plugin.graph_tap import PASSES_AT, ROWS_AT, GraphTap, TapBuffer
from profiler.plugin.own_rows import StepRows, first_own_token, own_bounds
from profiler.plugin.rank_view import RankView

LOGGED_IDS = 1 << 20
"""Ids held before they are counted: 4 MiB, and the count needs some ten times that for a moment."""

HELD_BYTES = 32 * 2**20
"""Copies of graphs' buffers held before they are counted; mostly rows that small batches leave empty."""


@dataclass(eq=False)
class LoggedStep:
    """What one forward pass routed.

    Attributes
    ----------
    rows : StepRows
    launched_s : float
    number : int
        The engine's number of the step.
    generation : int
        Applied pushes at its end.
    ids_of_layer : list of (int, tensor)
        A layer and the own rows' expert ids [T, K].
    first_token : int
        The token of the batch that the first of those rows is.
    graph_copies : list of tensor
        Every buffer of the tap after the step, where a graph was replayed.
    graph_layers : tuple of int
        Layers to count from them: those that no eager run has logged.
    unused_tokens : tuple of int
        Tokens of the batch whose result the engine threw away.
    """

    rows: StepRows
    launched_s: float = 0.0
    number: int = 0
    generation: int = 0
    ids_of_layer: list[tuple[int, Any]] = field(default_factory=list)
    first_token: int = 0
    graph_copies: list[Any] = field(default_factory=list)
    graph_layers: tuple[int, ...] = ()
    unused_tokens: tuple[int, ...] = ()

    def add_rows(self, layer: int, ids_TK: Any, *, first_token: int) -> None:
        """Log own rows of one layer, as they are now."""
        self.ids_of_layer.append((layer, ids_TK.clone()))
        self.first_token = first_token

    def add_graph(self, tap: GraphTap, *, layers: tuple[int, ...]) -> None:
        """Log what a replayed graph wrote for some layers; without tokens too, for the number of its passes."""
        self.graph_copies, self.graph_layers = tap.copies(), layers

    def leave_out(self, tokens: tuple[int, ...]) -> None:
        """Note the tokens that the engine threw away."""
        self.unused_tokens = tokens
        for _layer, ids_TK in self.ids_of_layer:
            for token in tokens:
                if 0 <= token - self.first_token < ids_TK.shape[0]:
                    ids_TK[token - self.first_token].fill_(-1)


@dataclass
class StepLog:
    """Logs steps and adds them to ``counts_FLE``.

    Attributes
    ----------
    counts_FLE : tensor
        int64 [phases, layers, experts + 1]; padding (-1) and fused shared experts (ids from E on) go to the last
        column.
    view : RankView
    tap : GraphTap or None
        Where graphs write, once there are any.
    """

    counts_FLE: Any
    view: RankView
    tap: GraphTap | None = None
    _rows: list[tuple[int, int, Any]] = field(default_factory=list)
    _graphs: list[list[tuple[LoggedStep, Any]]] = field(default_factory=list)
    _passes_before: list[Any] = field(default_factory=list)
    _ids: int = 0
    _held_bytes: int = 0

    def __post_init__(self) -> None:
        if self.tap is not None:
            self._passes_before = [copy[PASSES_AT:] for copy in self.tap.copies()]

    def add(self, step: LoggedStep) -> None:
        """Take a step whose result is known; count when enough was logged."""
        for layer, ids_TK in step.ids_of_layer:
            self._rows.append((step.rows.phase, layer, ids_TK.flatten()))
            self._ids += ids_TK.numel()
        if self.tap is not None:
            for number, copy in enumerate(step.graph_copies):
                if number == len(self._graphs):
                    self._graphs.append([])
                self._graphs[number].append((step, copy))
                buffer = self.tap.buffers[number]
                self._ids += self._rows_needed(step, buffer) * buffer.layers * buffer.top_k
                self._held_bytes += copy.nbytes
        if self._ids >= LOGGED_IDS or self._held_bytes >= HELD_BYTES:
            self.count()

    def count(self) -> None:
        """Count everything that was logged."""
        if self._rows:
            self._count_rows()
        for number, steps in enumerate(self._graphs):
            if steps:
                self._count_graphs(number, steps)
                steps.clear()
        self._rows.clear()
        self._ids = self._held_bytes = 0

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

    def _count_graphs(self, number: int, steps: list[tuple[LoggedStep, Any]]) -> None:
        """Count the copies of one of the tap's buffers, in the order in which they were made."""
        import torch

        if self.tap is None:
            return
        buffer = self.tap.buffers[number]
        _phases, layers, columns = self.counts_FLE.shape
        flat_NB = torch.stack([copy for _step, copy in steps])
        rows = max(self._rows_needed(step, buffer) for step, _copy in steps)
        own_NR = self._own_rows(rows, [step for step, _copy in steps], rows_N=flat_NB[:, ROWS_AT].to(torch.int64))
        own_NR &= self._written(number, passes_N=flat_NB[:, PASSES_AT])[:, None]
        counted_NL = np.zeros((len(steps), layers), dtype=np.int64)
        for n, (step, _copy) in enumerate(steps):
            counted_NL[n, list(step.graph_layers)] = 1
        phase_N1 = np.array([[step.rows.phase] for step, _copy in steps])
        first_NL = (phase_N1 * layers + np.arange(layers)) * columns
        counted, first = self._on_device(np.stack([counted_NL, first_NL]))
        ids_NLRK = buffer.ids_of(flat_NB)[:, :, :rows]
        ids_NLRK = torch.where(own_NR[:, None, :, None] & counted.bool()[:, :, None, None], ids_NLRK, -1)
        self._add(first[:, :, None, None].expand(ids_NLRK.shape), ids_NLRK)

    def _written(self, number: int, *, passes_N: Any) -> Any:
        """Tell which copies were made after a pass that wrote to the buffer; bool [N]."""
        import torch

        if number == len(self._passes_before):  # a buffer that joined since the recording began
            self._passes_before.append(torch.zeros_like(passes_N[:1]))
        before_N = torch.cat([self._passes_before[number], passes_N[:-1]])
        self._passes_before[number] = passes_N[-1:].clone()
        return passes_N != before_N

    def _rows_needed(self, step: LoggedStep, buffer: TapBuffer) -> int:
        """Return in how many first rows of a buffer a step's own tokens stand."""
        if self.view.dp_attention and not self.view.all_to_all:
            return buffer.rows if step.rows.tokens else 0
        return min(step.rows.tokens, buffer.rows)

    def _own_rows(self, rows: int, steps: list[LoggedStep], *, rows_N: Any) -> Any:
        """Mark the rows of own tokens that the engine used; bool [N, R]."""
        import torch

        tokens_N = self._on_device([step.rows.tokens for step in steps])
        start, end = own_bounds(self.view, tokens_N, rows=rows_N, padded_tokens=None)
        start_N, end_N = torch.zeros_like(rows_N) + start, torch.minimum(end, rows_N)
        row_R = torch.arange(rows + 1, device=rows_N.device)  # the last one takes tokens that are another rank's
        own_NR = (row_R >= start_N[:, None]) & (row_R < end_N[:, None])
        unused = [(n, token) for n, step in enumerate(steps) for token in step.unused_tokens]
        if unused:
            step_M, token_M = self._on_device(unused).unbind(1)
            row_M = (start_N - first_own_token(self.view, rows=rows_N))[step_M] + token_M
            mine_M = (row_M >= start_N[step_M]) & (row_M < end_N[step_M])
            own_NR[step_M, torch.where(mine_M, row_M, rows)] = False
        return own_NR[:, :rows]

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

        host = torch.from_numpy(np.asarray(values, dtype=np.int64))
        device = self.counts_FLE.device
        return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def empty_counts(*, layers: int, experts: int, device: Any) -> Any:
    """Return zeros for :attr:`StepLog.counts_FLE`."""
    import torch

    return torch.zeros((len(PHASES), layers, experts + 1), dtype=torch.int64, device=device)
