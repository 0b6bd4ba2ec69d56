"""Counts that fit into memory: checked values, and the reader that all small formats of counts share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from placement.errors import CountOutOfRange, NegativeCount
from placement.notice import Notice
from profiler.errors import BadCountShape, BadCountType, InputsDisagree, MissingRanks, NonFiniteCount
from profiler.files import content_hash
from profiler.readers.layer_rows import LayerRows, decoder_layer_rows
from profiler.readers.options import ReadOptions
from profiler.trace import CountChunk, TraceHeader

MAX_EXPERTS = 65534
"""The largest expert id that a trace can hold is one below its filler."""
MAX_SHARED_EXPERTS = 8
"""More columns or ids than this beyond the routed experts are another model, not fused shared experts."""
MAX_CELLS = 2**24
"""Layers x experts; several times the largest model, small enough for memory."""
MAX_COUNT = 2**63 - 1
MAX_TOTAL = 2.0**62


def whole_counts(values: npt.NDArray[Any], *, where: str) -> npt.NDArray[np.int64]:
    """Return an array of counts as int64, if every value is a whole number from 0 to 2^63 - 1.

    Parameters
    ----------
    values : ndarray
        Any shape and numeric type; 5.0 is 5.
    where : str
        What the array is, for messages; the index is appended.

    Raises
    ------
    BadCountType, NonFiniteCount, NegativeCount, CountOutOfRange
        Naming the first offending index.
    """
    kind = values.dtype.kind
    if kind not in "iuf":
        raise BadCountType(f"{where} holds {values.dtype} values; counts are whole numbers.")
    if kind == "f":
        _refuse(~np.isfinite(values), values, where, NonFiniteCount, "is not finite; counts are whole numbers")
    if kind != "u":
        _refuse(values < 0, values, where, NegativeCount, "is negative; counts are >= 0")
    if kind == "f":
        _refuse(values >= 2.0**63, values, where, CountOutOfRange, "does not fit into 64 bits")
        _refuse(values != np.floor(values), values, where, BadCountType, "is a fraction; counts are whole numbers")
    if kind == "u" and values.dtype.itemsize == 8:
        _refuse(values > np.uint64(2**63 - 1), values, where, CountOutOfRange, "does not fit into 64 bits")
    return values.astype(np.int64)


def _refuse(bad: npt.NDArray[np.bool_], values: npt.NDArray[Any], where: str, error: type[Exception], why: str) -> None:
    if bad.any():
        index = np.unravel_index(int(np.argmax(bad)), bad.shape)
        place = "".join(f"[{int(value)}]" for value in index)
        raise error(f"{where}{place} is {values[index].item()!r}: it {why}.")


def exact_number(text: str) -> Decimal:
    """Parse a decimal number without rounding; an exponent beyond Decimal becomes infinite, or a half for tiny ones."""
    try:
        return Decimal(text)
    except InvalidOperation:
        if "e-" in text.lower():
            return Decimal("0.5")
        return Decimal("-Infinity" if text.startswith("-") else "Infinity")


def whole_count(value: Decimal, *, where: str) -> int:
    """Return one exact number as a count; 5.0 is 5.

    Raises
    ------
    BadCountType, NegativeCount, CountOutOfRange
    """
    text = str(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    if value.is_signed() and value != 0:
        raise NegativeCount(f"{where} is {text}; counts are >= 0.")
    if value > MAX_COUNT:
        raise CountOutOfRange(f"{where} is {text}; counts go up to {MAX_COUNT}.")
    whole = int(value) if value >= 1 else 0  # compared before rounding, which would write out a huge exponent's digits
    if value != whole:
        raise BadCountType(f"{where} is {text}; a count is a whole number.")
    return whole


def require_bounded_total(counts: npt.NDArray[np.int64], *, where: str) -> None:
    """Refuse counts whose sum could overflow a 64-bit integer later on. Raises :class:`CountOutOfRange`."""
    total = float(counts.sum(dtype=np.float64))
    if total >= MAX_TOTAL:
        raise CountOutOfRange(f"the counts of {where} add up to {total:.3g}, more than 2^62.")


def require_sane_size(layers: int, experts: int, *, name: str) -> None:
    """Refuse a table that a few wrong labels made huge. Raises :class:`BadCountShape`."""
    if layers * experts > MAX_CELLS:
        raise BadCountShape(f"{name} would have {layers} layers x {experts} experts; up to {MAX_CELLS} cells are read.")


def routed_experts(width: int, options: ReadOptions, *, name: str) -> int:
    """Return how many of ``width`` expert columns are routed experts; the others are fused shared experts.

    Raises
    ------
    BadCountShape, InputsDisagree
        No columns, or a width that does not fit the number of experts the caller gave.
    """
    known = options.known_experts
    if not 0 < min(width, known or width) <= MAX_EXPERTS:
        raise BadCountShape(f"{name} has {width} experts; 1 to {MAX_EXPERTS} are read.")
    if known is None:
        return width
    if not known <= width <= known + MAX_SHARED_EXPERTS:
        raise InputsDisagree(f"{name} has {width} experts, the model has {known}: is it the same model?")
    return known


def experts_assumed_notice(name: str, experts: int) -> Notice:
    """Return the warning that the number of experts is a guess."""
    return Notice(
        "EXPERTS_ASSUMED",
        f"{name} does not say how many experts there are; {experts} are taken from its highest id. Give --experts or "
        "--model if there are more.",
    )


def shared_experts_notice(name: str, routed: int, shared_total: int) -> Notice:
    """Return the warning about ids behind the routed experts."""
    return Notice(
        "SHARED_EXPERT_IDS",
        f"{name}: ids from {routed} on are fused shared experts; their {shared_total} tokens are left out, they are on "
        "every GPU.",
    )


@dataclass(frozen=True, eq=False)
class RecordedCounts:
    """Counts as a file states them.

    Attributes
    ----------
    counts_CRX : ndarray
        int64 [chunks, recorded rows, expert columns].
    windows_C : tuple of str
        Window of every chunk; chunks with the same name belong together.
    steps_C : tuple of int
        Engine steps in every chunk, 0 where unknown.
    labels_R : sequence of int or None
        Number each row carries, where the format labels rows.
    numbering : {"decoder", "unknown"}
        See :func:`profiler.readers.layer_rows.decoder_layer_rows`.
    top_k : int or None
    engine : str
    facts : mapping
        What else the format says, for ``trace info``.
    notices : tuple of Notice
    missing_ranks : tuple of int
        Ranks whose files are missing.
    """

    counts_CRX: npt.NDArray[np.int64]
    windows_C: tuple[str, ...]
    steps_C: tuple[int, ...]
    labels_R: Sequence[int] | None = None
    numbering: Literal["decoder", "unknown"] = "decoder"
    top_k: int | None = None
    engine: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    missing_ranks: tuple[int, ...] = ()


class CountsReader:
    """A :class:`profiler.trace.TraceReader` over :class:`RecordedCounts`.

    Parameters
    ----------
    name : str
        Name of the input.
    paths : sequence of Path
        Its files.
    recorded : RecordedCounts
    options : ReadOptions

    Raises
    ------
    BadCountShape, InputsDisagree, CountOutOfRange
    """

    def __init__(self, *, name: str, paths: Sequence[Path], recorded: RecordedCounts, options: ReadOptions) -> None:
        counts_CRX = recorded.counts_CRX
        require_bounded_total(counts_CRX, where=name)
        self._name = name
        self._paths = tuple(paths)
        self._recorded = recorded
        self._options = options
        self._rows: LayerRows = decoder_layer_rows(
            name=name,
            row_count=counts_CRX.shape[1],
            labels=recorded.labels_R,
            has_traffic=(counts_CRX.max(axis=2).max(axis=0) > 0).tolist(),
            model=options.model,
            numbering=recorded.numbering,
        )
        self._experts = routed_experts(counts_CRX.shape[2], options, name=name)
        require_sane_size(self._rows.layers, self._experts, name=name)
        model = options.model
        self._header = TraceHeader(
            kind="counts",
            layers=self._rows.layers,
            experts=self._experts,
            top_k=recorded.top_k or (model.top_k if model else None),
            engine=recorded.engine,
            model=model.name if model else "",
        )

    @property
    def header(self) -> TraceHeader:
        return self._header

    @property
    def name(self) -> str:
        return self._name

    @cached_property
    def content_hash(self) -> str:
        return content_hash(self._paths)

    @cached_property
    def notices(self) -> tuple[Notice, ...]:
        notices = (*self._recorded.notices, *self._rows.notices)
        shared_total = int(self._recorded.counts_CRX[:, :, self._experts :].sum())
        if self._recorded.counts_CRX.shape[2] > self._experts:
            notices += (shared_experts_notice(self._name, self._experts, shared_total),)
        if self._recorded.missing_ranks:
            notices += (missing_ranks_notice(self._name, self._recorded.missing_ranks),)
        return notices

    def facts(self) -> dict[str, object]:
        """Return what this format says beyond the header."""
        return dict(self._recorded.facts)

    def require_complete(self) -> None:
        """Raise :class:`MissingRanks` where files of some ranks are missing and the caller did not allow it."""
        if self._recorded.missing_ranks and not self._options.allow_partial:
            raise MissingRanks(missing_ranks_notice(self._name, self._recorded.missing_ranks).detail)

    def chunks(self) -> Iterator[CountChunk]:
        """Yield one chunk per window, or per engine step where the file has steps."""
        recorded = self._recorded
        for counts_RX, window, steps in zip(recorded.counts_CRX, recorded.windows_C, recorded.steps_C, strict=True):
            tokens_LE = self._rows.place(counts_RX[:, : self._experts])
            yield CountChunk(window=window, tokens_LSE=tokens_LE[:, None, :], steps=steps)


def missing_ranks_notice(name: str, missing: Sequence[int]) -> Notice:
    """Return the warning that files of some ranks are missing."""
    shown = ", ".join(str(rank) for rank in missing[:16]) + (", ..." if len(missing) > 16 else "")
    return Notice(
        "MISSING_RANKS",
        f"{name} lacks the files of rank {shown} ({len(missing)} missing), so it holds part of the traffic only; add "
        "them, or plan from the part with --allow-partial.",
    )
