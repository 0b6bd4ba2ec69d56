"""Adding up traffic by window while recordings are streamed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.errors import BadOption, CountOutOfRange
from placement.notice import Notice
from profiler.agreement import unique_window_names
from profiler.conservation import conservation_notices
from profiler.counting import count_ids
from profiler.errors import BadCountShape
from profiler.readers.counts import MAX_TOTAL
from profiler.trace import TokenChunk, TraceHeader, TraceReader
from profiler.window_by import WindowBy
from profiler.window_keys import WindowKey

MAX_DEMAND_BYTES = 2**30
"""More than this is thousands of windows; a plan needs tens."""

MAX_WINDOWS = 4096
"""Small models fit many windows into the bytes above, but the solver looks at every one."""


@dataclass
class _Window:
    """What was added up in one window so far."""

    tokens_LSE: npt.NDArray[np.int64]
    from_counts: bool
    tokens: int = 0


@dataclass(frozen=True)
class Finished:
    """Demand, the warnings about its windows, and where in it each key's traffic is."""

    demand: Demand
    notices: list[Notice]
    window_of: dict[WindowKey, int]


@dataclass
class Tally:
    """Windows by key, in order of appearance."""

    header: TraceHeader
    rows: int
    windows: dict[WindowKey, _Window] = field(default_factory=dict)
    total: float = 0.0

    def add_counts(self, key: WindowKey, tokens_LSE: npt.NDArray[np.int64], name: str) -> None:
        """Add the counts of a chunk to its window."""
        tokens_LRE = tokens_LSE if self.rows > 1 else tokens_LSE.sum(axis=1, keepdims=True)
        expected = self.header.layers, self.rows, self.header.experts
        if tokens_LRE.shape != expected:
            raise BadCountShape(
                f"{name} has counts of shape {list(tokens_LRE.shape)}, its header says {list(expected)}."
            )
        self.total += float(tokens_LRE.sum(dtype=np.float64))
        if self.total >= MAX_TOTAL:
            raise CountOutOfRange(f"the counts of all inputs add up to {self.total:.3g}, more than 2^62.")
        self._window(key, from_counts=True).tokens_LSE += tokens_LRE

    def add_tokens(
        self, keys: Sequence[WindowKey], window_T: npt.NDArray[np.int64], chunk: TokenChunk, name: str
    ) -> None:
        """Count the tokens of a chunk in their windows, ``keys[window_T[t]]`` for token t."""
        if len(window_T) == 0:
            return
        group_T = window_T
        if self.rows > 1:
            source_T = chunk.source_T
            if not 0 <= int(source_T.min()) <= int(source_T.max()) < self.rows:
                wrong = int(source_T.min()) if int(source_T.min()) < 0 else int(source_T.max())
                raise BadCountShape(f"{name} has a token from rank {wrong}; ranks are 0 to {self.rows - 1}.")
            group_T = window_T * self.rows + source_T
        groups = len(keys) * self.rows
        counts_ZLE = count_ids(chunk.topk_LTK, group_T, groups=groups, experts=self.header.experts)
        tokens_W = np.bincount(window_T, minlength=len(keys))
        for index, key in enumerate(keys):
            window = self._window(key, from_counts=False)
            window.tokens_LSE += counts_ZLE[index * self.rows : (index + 1) * self.rows].swapaxes(0, 1)
            window.tokens += int(tokens_W[index])

    def finish(self, readers: Sequence[TraceReader], rule: WindowBy, *, measured: bool, top_k: int | None) -> Finished:
        """Return the windows as demand, without empty ones, and the warnings about them."""
        if not self.windows:
            self._window(WindowKey(0, 0, readers[0].name), from_counts=True)
        keys = list(self.windows) if rule.kind in ("file", "none") else sorted(self.windows)
        windows = [self.windows[key] for key in keys]
        names = unique_window_names([(readers[key.reader].name, key.name) for key in keys])
        window_of = {key: index for index, key in enumerate(keys)}
        if rule.kind == "none":
            windows, names, window_of = [_added_up(windows)], ("all",), dict.fromkeys(keys, 0)
        busy = [index for index, window in enumerate(windows) if bool(window.tokens_LSE.any())] or [0]
        if len(busy) > MAX_WINDOWS:
            raise BadOption(
                f"the inputs have {len(busy)} windows; at most {MAX_WINDOWS} are planned for: add them up with "
                "--window-by none, or cut longer ones."
            )
        notices = []
        if len(busy) < len(windows):
            notices.append(
                Notice(
                    "WINDOWS_EMPTY", f"{len(windows) - len(busy)} of {len(windows)} windows have no traffic; left out."
                )
            )
        windows, names = [windows[index] for index in busy], tuple(names[index] for index in busy)
        tokens_WLSE = np.stack([window.tokens_LSE for window in windows])
        expected = [window.tokens * top_k if top_k and not window.from_counts else None for window in windows]
        notices += conservation_notices(tokens_WLSE.sum(axis=(2, 3)), names, expected)
        place_of = {index: place for place, index in enumerate(busy)}
        return Finished(
            Demand(tokens_WLSE, "measured" if measured else "uniform", names),
            notices,
            {key: place_of[index] for key, index in window_of.items() if index in place_of},
        )

    def _window(self, key: WindowKey, *, from_counts: bool) -> _Window:
        found = self.windows.get(key)
        if found is not None:
            found.from_counts |= from_counts
            return found
        shape = self.header.layers, self.rows, self.header.experts
        if (len(self.windows) + 1) * 8 * math.prod(shape) > MAX_DEMAND_BYTES:
            raise BadOption(
                f"more than {len(self.windows)} windows of {shape[0]} layers x {shape[1]} sources x {shape[2]} experts "
                "do not fit into 1 GiB; cut the traffic into longer windows."
            )
        self.windows[key] = _Window(np.zeros(shape, dtype=np.int64), from_counts)
        return self.windows[key]


def _added_up(windows: Sequence[_Window]) -> _Window:
    """Return one window with the traffic of all."""
    return _Window(
        tokens_LSE=np.sum([window.tokens_LSE for window in windows], axis=0, dtype=np.int64),
        from_counts=any(window.from_counts for window in windows),
        tokens=sum(window.tokens for window in windows),
    )
