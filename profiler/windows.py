"""From recordings to demand: windows, home GPUs and what is held out for judging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.errors import BadOption
from placement.notice import Notice
from profiler.agreement import agreed_header
from profiler.tally import Tally
from profiler.token_stream import RecordedTokens
from profiler.trace import PHASE_NUMBERS, CountChunk, TraceHeader, TraceReader
from profiler.window_by import WindowBy
from profiler.window_keys import WindowCutter, last_of, last_requests, select_tokens

__all__ = ["DemandResult", "WindowBy", "build_demand"]


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
    tokens, holdout_tokens : RecordedTokens or None
        The tokens that either demand was added up from; None where some input holds counts.
    """

    demand: Demand
    holdout_demand: Demand | None
    notices: tuple[Notice, ...]
    header: TraceHeader
    tokens: RecordedTokens | None = None
    holdout_tokens: RecordedTokens | None = None


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
    planned, held = (Tally(header, rows=gpus if measured else 1) for _ in range(2))
    late_requests = []
    for number, reader in enumerate(readers):
        cutter = WindowCutter(window_by, number, reader, header)
        late = last_requests(reader, holdout) if holdout is not None and reader.header.kind == "tokens" else None
        late_requests.append(late)
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
        *(notice for each in finished for notice in each.notices),
    ]
    tokens = None
    if header.kind == "tokens":
        window_of = finished[0].window_of
        tokens = RecordedTokens(
            readers, header, window_by, window_of, late_requests, "planned", phase=phase, measured=measured
        )
    return DemandResult(
        demand=finished[0].demand,
        holdout_demand=None if holdout is None else finished[1].demand,
        notices=tuple(dict.fromkeys(notices)),
        header=header,
        tokens=tokens,
        holdout_tokens=None
        if holdout is None or tokens is None
        else replace(tokens, part="held out", window_of=finished[1].window_of),
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
    planned: Tally,
    held: Tally,
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


def _hold_out_counts(planned: Tally, held: Tally, share: float) -> None:
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
