"""From recordings to demand: windows, home GPUs and what is held out for judging."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.errors import BadOption, CountOutOfRange
from placement.notice import Notice
from profiler.agreement import agreed_header, unique_window_names
from profiler.conservation import conservation_notices
from profiler.counting import count_ids
from profiler.errors import BadCountShape
from profiler.readers.counts import MAX_TOTAL
from profiler.trace import PHASE_NUMBERS, CountChunk, TokenChunk, TraceHeader, TraceReader
from profiler.window_by import WindowBy
from profiler.window_keys import WindowCutter, WindowKey, last_of, last_requests, select_tokens

__all__ = ["DemandResult", "WindowBy", "build_demand"]

MAX_DEMAND_BYTES = 2**30
"""More than this is thousands of windows; a plan needs tens."""

MAX_WINDOWS = 4096
"""Small models fit many windows into the bytes above, but the solver looks at every one."""


@dataclass(frozen=True)
class DemandResult:
    """Demand made from recordings.

    Attributes
    ----------
    demand : Demand
        To plan from.
    holdout_demand : Demand or None
        Kept apart to judge on, where a share was asked for.
    notices : tuple of Notice
        The inputs' warnings and those of adding up.
    header : TraceHeader
        What all inputs have in common.
    """

    demand: Demand
    holdout_demand: Demand | None
    notices: tuple[Notice, ...]
    header: TraceHeader


def build_demand(
    readers: Sequence[TraceReader],
    *,
    window_by: WindowBy,
    gpus: int,
    sources: str = "auto",
    holdout: float | None = None,
    phase: Literal["prefill", "decode"] | None = None,
) -> DemandResult:
    """Add up recordings by window, layer, home GPU and expert, streaming.

    Parameters
    ----------
    readers : sequence of TraceReader
        At least one; they must describe the same model.
    window_by : WindowBy
    gpus : int
        Home GPUs are used when every input counts by exactly this many ranks: rank r lives on GPU r. In all other
        cases sources are taken as uniform, with the notice ``SOURCES_UNKNOWN`` or ``SOURCES_IGNORED``.
    sources : {"auto", "uniform"}
        ``uniform`` forgets home GPUs.
    holdout : float, optional
        Share to keep apart: the last requests (by first appearance) of each token trace, the last windows of counts.
        Rounded so that both sides have some.
    phase : {"prefill", "decode"}, optional
        Keep only this phase.

    Raises
    ------
    BadOption
        The windows, the share or the phase asked for cannot be had from these inputs.
    InputsDisagree, CountOutOfRange
        And whatever the readers raise.
    """
    if sources not in ("auto", "uniform"):
        raise BadOption(f"sources is {sources!r}; it must be auto or uniform.")
    if holdout is not None and not 0.0 < holdout < 1.0:
        raise BadOption(f"the share to hold out is {holdout:g}; it must be above 0 and below 1.")
    header = agreed_header(readers)
    measured, notices = _source_rule(readers, gpus=gpus, sources=sources)
    planned, held = (_Tally(header, rows=gpus if measured else 1) for _ in range(2))
    for number, reader in enumerate(readers):
        cutter = WindowCutter(window_by, number, reader, header)
        late = last_requests(reader, holdout) if holdout is not None and reader.header.kind == "tokens" else None
        _add_up(reader, cutter, planned, held, late=late, phase=phase)
    if phase is not None and not planned.windows and not held.windows:
        raise BadOption(f"none of the inputs has traffic marked as {phase}; leave --phase out.")
    if holdout is not None:
        _hold_out_counts(planned, held, holdout)
    shared = any(notice.code == "SHARED_EXPERT_IDS" for reader in readers for notice in reader.notices)
    top_k = None if shared else header.top_k
    finished = [
        tally.finish(readers, window_by, measured=measured, top_k=top_k)
        for tally in ([planned] if holdout is None else [planned, held])
    ]
    notices = [
        *(notice for reader in readers for notice in reader.notices),
        *notices,
        *(notice for _, about_windows in finished for notice in about_windows),
    ]
    return DemandResult(
        demand=finished[0][0],
        holdout_demand=None if holdout is None else finished[1][0],
        notices=tuple(dict.fromkeys(notices)),
        header=header,
    )


def _source_rule(readers: Sequence[TraceReader], *, gpus: int, sources: str) -> tuple[bool, list[Notice]]:
    """Decide whether home GPUs are used, and say why not."""
    if sources == "uniform":
        return False, []
    unknown = [reader.name for reader in readers if reader.header.source_ranks is None]
    if unknown:
        detail = f"home GPUs are not recorded in {_listed(unknown)}; tokens are taken as spread evenly over all GPUs."
        return False, [Notice("SOURCES_UNKNOWN", detail)]
    other = [reader for reader in readers if reader.header.source_ranks != gpus]
    if other:
        names = _listed([reader.name for reader in other])
        detail = (
            f"home GPUs in {names} are of {other[0].header.source_ranks} ranks and the plan is for {gpus} GPUs, so "
            "they cannot be carried over; tokens are taken as spread evenly over all GPUs."
        )
        return False, [Notice("SOURCES_IGNORED", detail)]
    return True, []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _add_up(
    reader: TraceReader,
    cutter: WindowCutter,
    planned: _Tally,
    held: _Tally,
    *,
    late: npt.NDArray[np.int64] | None,
    phase: Literal["prefill", "decode"] | None,
) -> None:
    """Stream one input into the tallies; tokens of requests in ``late`` are held out."""
    for chunk in reader.chunks():
        if isinstance(chunk, CountChunk):
            if phase in (None, chunk.phase):
                planned.add_counts(cutter.window_of_counts(chunk), chunk.tokens_LSE, reader.name)
            continue
        if phase is not None:
            chunk = select_tokens(chunk, chunk.phase_T == PHASE_NUMBERS[phase])
        if late is None:
            planned.add_tokens(*cutter.windows_of_tokens(chunk), chunk, reader.name)
            continue
        is_late_T = np.isin(chunk.request_id_T, late)
        for tally, chosen_T in ((planned, ~is_late_T), (held, is_late_T)):
            part = select_tokens(chunk, chosen_T)
            tally.add_tokens(*cutter.windows_of_tokens(part), part, reader.name)


def _hold_out_counts(planned: _Tally, held: _Tally, share: float) -> None:
    """Move the last windows of counts to the other tally; empty windows do not count."""
    keys = [key for key, window in planned.windows.items() if window.from_counts and bool(window.tokens_LSE.any())]
    if not keys:
        return
    if len(keys) == 1:
        raise BadOption(
            f"there is one window of counts ({keys[0].name}); to hold some out, at least two are needed: give several "
            "inputs, or cut a dump with --window-by steps:N."
        )
    for index in last_of(range(len(keys)), share):
        held.windows[keys[index]] = planned.windows.pop(keys[index])


@dataclass
class _Window:
    """What was added up in one window so far."""

    tokens_LSE: npt.NDArray[np.int64]
    from_counts: bool
    tokens: int = 0


@dataclass
class _Tally:
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

    def finish(
        self, readers: Sequence[TraceReader], rule: WindowBy, *, measured: bool, top_k: int | None
    ) -> tuple[Demand, list[Notice]]:
        """Return the windows as demand, without empty ones, and the warnings about them."""
        if not self.windows:
            self._window(WindowKey(0, 0, readers[0].name), from_counts=True)
        keys = list(self.windows) if rule.kind in ("file", "none") else sorted(self.windows)
        windows = [self.windows[key] for key in keys]
        names = unique_window_names([(readers[key.reader].name, key.name) for key in keys])
        if rule.kind == "none":
            windows, names = [_added_up(windows)], ("all",)
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
        return Demand(tokens_WLSE, "measured" if measured else "uniform", names), notices

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
