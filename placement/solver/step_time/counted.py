"""Copies of one layer's tokens under hosts that change, by window, home and destination: counted, not expected.

Every token's row holds, for each GPU, the logarithm of the chance that none of its experts is computed there. Experts
add to it, so an exchange of two experts changes the rows of their own tokens by a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from placement.solver.instance import Bools, Floats, Ints
from placement.tokens import Tokens
from placement.topology import Topology

SURE = 1.0 - 1e-15
"""A sure choice, as near as its logarithm is finite."""


@dataclass(frozen=True, eq=False)
class CountedTokens:
    """The tokens of one layer.

    Attributes
    ----------
    experts_TK : ndarray
        uint16 [T, K]; the number of experts stands for none.
    home_T : ndarray or None
        int32 [T], None for uniform homes.
    window_T : ndarray
        int32 [T].
    experts, windows : int
    topology : Topology
    """

    experts_TK: npt.NDArray[np.uint16]
    home_T: npt.NDArray[np.int32] | None
    window_T: npt.NDArray[np.int32]
    experts: int
    windows: int
    topology: Topology

    @classmethod
    def of_layer(
        cls, tokens: Tokens, layer: int, *, windows: int, topology: Topology, most_numbers: int
    ) -> CountedTokens:
        """Take a layer's tokens, evenly thinned out to at most so many numbers kept for tokens, sources and GPUs."""
        used_T = np.flatnonzero((tokens.experts_LTK[layer] < tokens.experts).any(axis=1))
        sources = topology.gpus if tokens.home_T is None else 1
        most = max(1, most_numbers // (sources * topology.gpus))
        if len(used_T) > most:
            used_T = used_T[np.linspace(0, len(used_T) - 1, most).astype(np.int64)]
        return cls(
            np.minimum(tokens.experts_LTK[layer][used_T], tokens.experts).astype(np.uint16),
            None if tokens.home_T is None else tokens.home_T[used_T],
            tokens.window_T[used_T],
            tokens.experts,
            windows,
            topology,
        )

    @cached_property
    def tokens_W(self) -> Ints:
        return np.bincount(self.window_T, minlength=self.windows)

    @cached_property
    def of_experts(self) -> list[Ints]:
        """Tokens of every expert, ascending; a token counts an expert once."""
        chosen_ET = np.zeros((self.experts + 1, len(self.experts_TK)), dtype=np.bool_)
        chosen_ET[self.experts_TK, np.arange(len(self.experts_TK))[:, None]] = True
        return [np.flatnonzero(chosen_T) for chosen_T in chosen_ET[:-1]]


@dataclass(frozen=True, eq=False)
class Sent:
    """Copies per token of a window; GPUs of the own node, and the own GPU, count too.

    Attributes
    ----------
    gpu_WSG, node_WSN : ndarray
        float64, mean over the window's tokens.
    known_W : ndarray
        bool, whether the window has tokens.
    """

    gpu_WSG: Floats
    node_WSN: Floats
    known_W: Bools


@dataclass(frozen=True, eq=False)
class Change:
    """Rows of some tokens as they would be, and what would be sent."""

    token_X: Ints
    rows: Floats
    sums: Floats


class CountedCopies:
    """Copies of a layer's tokens, for sites that are all GPUs followed by all nodes (where there are several).

    Parameters
    ----------
    tokens : CountedTokens
    share_ESG : ndarray
        float64 [E, S, G], the share of source s's tokens for an expert that GPU g serves.
    """

    def __init__(self, tokens: CountedTokens, share_ESG: Floats) -> None:
        self.tokens = tokens
        self._absent_ESM = self._absent(share_ESG)
        self._rows = self._recounted()
        self._sums_WSM = self._added_up(np.arange(len(self._rows)), self._rows)

    @property
    def sent(self) -> Sent:
        return self._sent(self._sums_WSM)

    def change(self, experts: list[int], share_KSG: Floats) -> tuple[Change, Sent]:
        """Work out what is sent when some experts get other hosts."""
        affected_T = np.zeros(len(self._rows), dtype=np.bool_)
        for expert in experts:
            affected_T[self.tokens.of_experts[expert]] = True
        token_X = np.flatnonzero(affected_T)
        place_T = np.cumsum(affected_T) - 1
        rows = self._rows[token_X]
        before = self._added_up(token_X, rows)
        for expert, new_SM in zip(experts, self._absent(share_KSG), strict=True):
            own = self.tokens.of_experts[expert]
            rows[place_T[own]] += self._of_homes(new_SM - self._absent_ESM[expert], own)
        sums_WSM = self._sums_WSM + self._added_up(token_X, rows) - before
        return Change(token_X, rows, sums_WSM), self._sent(sums_WSM)

    def apply(self, experts: list[int], share_KSG: Floats, change: Change) -> None:
        """Take new hosts, with what :meth:`change` said about them."""
        self._rows[change.token_X] = change.rows
        self._sums_WSM = change.sums
        self._absent_ESM[experts] = self._absent(share_KSG)

    def _absent(self, share_KSG: Floats) -> Floats:
        """Return the logarithm of the chance that a site does not serve an expert, float64 [K, S, M]."""
        topology = self.tokens.topology
        if topology.nodes > 1:
            share_KSN = share_KSG.reshape(*share_KSG.shape[:2], topology.nodes, -1).sum(axis=3)
            share_KSG = np.concatenate([share_KSG, share_KSN], axis=2)
        absent_KSM: Floats = np.log1p(-np.minimum(share_KSG, SURE))
        return absent_KSM

    def _of_homes(self, value_SM: Floats, token_X: Ints) -> Floats:
        """Return a value of every source for the homes of some tokens: [X, 1, M], or [1, S, M] for uniform homes."""
        home_T = self.tokens.home_T
        return value_SM[None] if home_T is None else value_SM[home_T[token_X]][:, None]

    def _recounted(self) -> Floats:
        tokens, sources = self.tokens, self._absent_ESM.shape[1]
        rows = np.zeros((len(tokens.experts_TK), sources if tokens.home_T is None else 1, self._absent_ESM.shape[2]))
        for expert, token_X in enumerate(tokens.of_experts):
            rows[token_X] += self._of_homes(self._absent_ESM[expert], token_X)
        return rows

    def _added_up(self, token_X: Ints, rows: Floats) -> Floats:
        """Return the chances that tokens need a site, added up by window and home; float64 [W, S, M]."""
        tokens, (sources, sites) = self.tokens, self._absent_ESM.shape[1:]
        needed, window_X = -np.expm1(rows), tokens.window_T[token_X]
        sums_WSM = np.zeros((tokens.windows, sources, sites))
        if tokens.home_T is None:
            for window in np.unique(window_X).tolist():
                sums_WSM[window] = needed[window_X == window].sum(axis=0) / sources
            return sums_WSM
        place_X = window_X.astype(np.int64) * sources + tokens.home_T[token_X]
        by_site = [
            np.bincount(place_X, weights=needed[:, 0, site], minlength=sums_WSM[..., 0].size) for site in range(sites)
        ]
        sums_WSM[:] = np.stack(by_site, axis=1).reshape(sums_WSM.shape)
        return sums_WSM

    def _sent(self, sums_WSM: Floats) -> Sent:
        gpus, tokens_W = self.tokens.topology.gpus, self.tokens.tokens_W
        mean_WSM = sums_WSM / np.maximum(1, tokens_W)[:, None, None]
        return Sent(mean_WSM[..., :gpus], mean_WSM[..., gpus:], tokens_W > 0)
