"""SGLang's recorder in mode ``stat`` or ``stat_approx``: expert counts per engine step, summed over ranks.

Source: ``srt/eplb/expert_distribution.py`` (``_StatAccumulator``), SGLang 0.5.16 and 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import CountOutOfRange
from placement.notice import Notice
from profiler.errors import BadCountShape, BadCountType
from profiler.files import content_hash
from profiler.readers.counts import MAX_TOTAL, routed_experts, shared_experts_notice, whole_counts
from profiler.readers.layer_rows import decoder_layer_rows
from profiler.readers.options import ReadOptions
from profiler.readers.sglang_records import MAX_CELLS
from profiler.trace import CountChunk, TraceHeader

MAX_STEPS = 2**22
"""Of one ring: days of decoding."""


class SglangStatReader:
    """A :class:`profiler.trace.TraceReader` over a stat dump.

    ``logical_count`` is [steps, layers, experts], a ring of which unused steps are zero, or [layers, experts]. The
    sum over ranks was taken inside the engine, so sources are unknown. Without an all-to-all backend every rank
    counts every token, and padding is counted too: shares are right, totals are not token counts.

    Parameters
    ----------
    path : Path
    loaded : mapping
        What :func:`profiler.readers.pt_archive.load_pt` returned.
    options : ReadOptions
    name : str
        Name of the input: of the file, or of the folder that holds it alone.

    Raises
    ------
    BadCountShape, BadCountType, NonFiniteCount, NegativeCount, CountOutOfRange, InputsDisagree
    """

    def __init__(self, path: Path, loaded: Mapping[str, Any], options: ReadOptions, *, name: str) -> None:
        self._path = path
        self._name = name
        self._rank = loaded.get("rank")
        counts = loaded["logical_count"]
        if not isinstance(counts, np.ndarray):
            raise BadCountType(f"logical_count of {name} is a {type(counts).__name__}; a tensor is needed.")
        if counts.ndim not in (2, 3) or 0 in counts.shape[-2:]:
            raise BadCountShape(
                f"logical_count of {name} has shape {list(counts.shape)}; [steps, layers, experts] is needed."
            )
        if counts[..., 0, 0].size > MAX_STEPS or counts.shape[-2] * counts.shape[-1] > MAX_CELLS:
            raise BadCountShape(
                f"logical_count of {name} has shape {list(counts.shape)}; up to {MAX_STEPS} steps of {MAX_CELLS} "
                "counts are read."
            )
        self._steps = counts.shape[0] if counts.ndim == 3 else None
        self._counts_NRX = counts if counts.ndim == 3 else counts[None]
        totals_RX = self._survey()
        self._rows = decoder_layer_rows(
            name=name,
            row_count=totals_RX.shape[0],
            has_traffic=[bool(row_X.any()) for row_X in totals_RX],
            model=options.model,
        )
        experts = routed_experts(totals_RX.shape[1], options, name=name)
        self._shared_total = int(totals_RX[:, experts:].sum())
        model = options.model
        self._header = TraceHeader(
            kind="counts",
            layers=self._rows.layers,
            experts=experts,
            top_k=model.top_k if model else None,
            engine="sglang",
            model=model.name if model else "",
        )

    def _survey(self) -> npt.NDArray[np.float64]:
        """Check every count and find the steps that were used; return the sum over steps, [rows, columns]."""
        self._used: list[int] = []
        totals_RX = np.zeros(self._counts_NRX.shape[1:], dtype=np.float64)
        for step, counts_RX in enumerate(self._counts_NRX):
            where = f"logical_count of {self.name}" + ("" if self._steps is None else f" (step {step})")
            checked_RX = whole_counts(counts_RX, where=where)
            if checked_RX.any():
                self._used.append(step)
                totals_RX += checked_RX
        if totals_RX.sum() >= MAX_TOTAL:
            raise CountOutOfRange(f"the counts of {self.name} add up to {totals_RX.sum():.3g}, more than 2^62.")
        return totals_RX

    @property
    def header(self) -> TraceHeader:
        return self._header

    @property
    def name(self) -> str:
        return self._name

    @cached_property
    def content_hash(self) -> str:
        return content_hash([self._path])

    @property
    def notices(self) -> tuple[Notice, ...]:
        if not self._shared_total:
            return self._rows.notices
        return (*self._rows.notices, shared_experts_notice(self.name, self._header.experts, self._shared_total))

    def facts(self) -> dict[str, object]:
        """Return what this format says beyond the header: the recorder's mode, steps of the ring, steps used."""
        facts: dict[str, object] = {"recorder_mode": "stat", "rank": self._rank}
        if self._steps is not None:
            facts |= {"steps": self._steps, "used_steps": len(self._used)}
        return facts

    def require_complete(self) -> None:
        """Do nothing: rank 0 wrote the sum over all ranks."""

    def chunks(self) -> Iterator[CountChunk]:
        """Yield one chunk per used step, all of one window; one chunk of zeros where no step was used."""
        steps_per_chunk = 0 if self._steps is None else 1
        for step in self._used:
            yield self._chunk(self._counts_NRX[step], steps_per_chunk)
        if not self._used:
            yield self._chunk(np.zeros(self._counts_NRX.shape[1:], dtype=np.int64), 0)

    def _chunk(self, counts_RX: npt.NDArray[Any], steps: int) -> CountChunk:
        tokens_LE = self._rows.place(counts_RX[:, : self._header.experts].astype(np.int64))
        return CountChunk(window=self.name, tokens_LSE=tokens_LE[:, None, :], steps=steps)
