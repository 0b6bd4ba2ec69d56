"""Routed tokens by window, layer, source GPU and expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.errors import BadDemandShape, BadWindow, CountOutOfRange, EmptyProfile, NegativeCount

Sources = Literal["measured", "uniform"]


@dataclass(frozen=True, eq=False)
class Demand:
    """How many routed tokens every source sends to every expert.

    A token with top-k = 8 counts 8. Dense layers keep an all-zero row.

    Attributes
    ----------
    tokens_WLSE : ndarray
        int64 [W, L, S, E], read-only. With ``sources == "measured"`` S is the number of GPUs; with
        ``"uniform"`` S is 1 and stands for all GPUs sending the same share.
    sources : {"measured", "uniform"}
    window_names : tuple of str
        One name per window.

    Raises
    ------
    BadDemandShape, NegativeCount, CountOutOfRange
        Naming the index.
    """

    tokens_WLSE: npt.NDArray[np.int64]
    sources: Sources
    window_names: tuple[str, ...]

    def __post_init__(self) -> None:
        tokens = np.asarray(self.tokens_WLSE)
        if tokens.ndim != 4 or 0 in tokens.shape:
            raise BadDemandShape(f"demand has shape {tokens.shape}; it must be [windows, layers, sources, experts].")
        if tokens.dtype.kind not in "iu":
            raise BadDemandShape(f"demand holds {tokens.dtype} values; token counts are integers.")
        if self.sources == "uniform" and tokens.shape[2] != 1:
            raise BadDemandShape(f"uniform demand has one source row, got {tokens.shape[2]}.")
        if len(self.window_names) != tokens.shape[0]:
            raise BadDemandShape(f"{len(self.window_names)} window names for {tokens.shape[0]} windows.")
        if (tokens < 0).any():
            window, layer, source, expert = (int(value) for value in np.argwhere(tokens < 0)[0])
            raise NegativeCount(
                f"window {window}, layer {layer}, source {source}, expert {expert} has the count "
                f"{int(tokens[window, layer, source, expert])}; counts are >= 0."
            )
        if float(tokens.sum(dtype=np.float64)) >= 2.0**62:
            raise CountOutOfRange("the counts of this demand add up to more than 2^62.")
        frozen = np.array(tokens, dtype=np.int64, order="C")
        frozen.flags.writeable = False
        object.__setattr__(self, "tokens_WLSE", frozen)

    @classmethod
    def uniform(
        cls, tokens_WLE: npt.NDArray[np.integer] | Sequence[object], window_names: Sequence[str] = ()
    ) -> Demand:
        """Build demand from counts [W, L, E] (or [L, E]) whose sources are unknown, taken as uniform."""
        try:
            tokens = np.asarray(tokens_WLE)
        except ValueError as error:
            raise BadDemandShape("the counts are ragged: every layer needs as many counts as experts.") from error
        tokens = tokens[None] if tokens.ndim == 2 else tokens
        if tokens.ndim != 3:
            raise BadDemandShape(f"counts have shape {tokens.shape}; they must be [windows, layers, experts].")
        names = tuple(window_names) or tuple(f"window {index}" for index in range(tokens.shape[0]))
        return cls(tokens[:, :, None, :], "uniform", names)

    @property
    def windows(self) -> int:
        return int(self.tokens_WLSE.shape[0])

    @property
    def layers(self) -> int:
        return int(self.tokens_WLSE.shape[1])

    @property
    def experts(self) -> int:
        return int(self.tokens_WLSE.shape[3])

    @cached_property
    def tokens_WLE(self) -> npt.NDArray[np.int64]:
        """Demand summed over sources, int64 [W, L, E]."""
        tokens: npt.NDArray[np.int64] = self.tokens_WLSE.sum(axis=2)
        return tokens

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        """Layers with any demand; the others (dense layers) stay out of every average."""
        return tuple(np.flatnonzero(self.tokens_WLE.any(axis=(0, 2))).tolist())

    @property
    def total_tokens(self) -> int:
        return int(self.tokens_WLSE.sum())

    def require_not_empty(self) -> Demand:
        """Return self, or raise :class:`EmptyProfile`."""
        if not self.moe_layers:
            raise EmptyProfile(
                f"all {self.windows} x {self.layers} x {self.experts} counts are zero: was there traffic, and was "
                "recording on? The present layout stays."
            )
        return self

    def merged(self) -> Demand:
        """Return the same demand with all windows added up into one."""
        return replace(self, tokens_WLSE=self.tokens_WLSE.sum(axis=0, keepdims=True), window_names=("all",))

    def with_uniform_sources(self) -> Demand:
        """Return the same demand with the sources forgotten."""
        return Demand.uniform(self.tokens_WLE, self.window_names)

    def pick_windows(self, indices: Sequence[int]) -> Demand:
        """Return the demand of some windows, in the order given."""
        if not indices or min(indices) < 0 or max(indices) >= self.windows:
            raise BadWindow(f"windows {list(indices)} were asked for; there are windows 0 to {self.windows - 1}.")
        names = tuple(self.window_names[index] for index in indices)
        return replace(self, tokens_WLSE=self.tokens_WLSE[list(indices)], window_names=names)
