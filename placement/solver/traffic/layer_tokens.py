"""The tokens of one layer, as the search asks about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from placement.solver.instance import Ints

MOST_NUMBERS = 2**23
"""Numbers kept per layer for every token, source and GPU: 40 MiB. Beyond that part of the tokens is searched on."""


@dataclass(frozen=True, eq=False)
class LayerTokens:
    """Tokens that have experts in a layer, and which of them each expert has.

    Attributes
    ----------
    experts_TK : ndarray
        uint16 [T, K]; the number of experts stands for none.
    home_T : ndarray or None
        int32 [T], None for uniform homes.
    experts, gpus, nodes : int
    """

    experts_TK: npt.NDArray[np.uint16]
    home_T: npt.NDArray[np.int32] | None
    experts: int
    gpus: int
    nodes: int

    @property
    def tokens(self) -> int:
        return len(self.experts_TK)

    @cached_property
    def of_experts(self) -> list[Ints]:
        """Tokens of every expert, by home and then ascending; an expert counts once per token."""
        order_T = np.arange(self.tokens) if self.home_T is None else np.argsort(self.home_T, kind="stable")
        chosen_ET = np.zeros((self.experts + 1, self.tokens), dtype=np.bool_)
        chosen_ET[self.experts_TK[order_T], np.arange(self.tokens)[:, None]] = True
        return [order_T[np.flatnonzero(chosen_T)] for chosen_T in chosen_ET[:-1]]

    def thinned(self, most_tokens: int) -> LayerTokens:
        """Return an even choice of at most so many tokens."""
        if self.tokens <= most_tokens:
            return self
        kept_T = np.linspace(0, self.tokens - 1, most_tokens).astype(np.int64)
        home_T = None if self.home_T is None else self.home_T[kept_T]
        return replace(self, experts_TK=self.experts_TK[kept_T], home_T=home_T)


def layer_tokens(
    experts_TK: npt.NDArray[np.uint16],
    home_T: npt.NDArray[np.int32] | None,
    *,
    experts: int,
    gpus: int,
    nodes: int,
    has_replicas: bool,
) -> LayerTokens:
    """Keep the tokens with experts, evenly thinned out where keeping all would take too much memory."""
    used_T = (experts_TK < experts).any(axis=1)
    rows_TK = np.minimum(experts_TK[used_T], experts).astype(np.uint16)
    tokens = LayerTokens(rows_TK, None if home_T is None else home_T[used_T], experts, gpus, nodes)
    sources = gpus if home_T is None and has_replicas else 1
    return tokens.thinned(max(1, MOST_NUMBERS // (sources * gpus)))
