"""Copies of one layer's tokens while experts change their hosts: exact, and cheap to change.

For every token, source and GPU the state keeps how many of the token's experts are sent there for certain, and the
product of the chances that the others are not. A token needs the GPU unless no expert is certain and all chances miss,
so a change of one expert is a change of one factor in its own tokens' rows.

Uniform homes with no replica are a special case: all sources send to the same GPUs, so one row stands for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.solver.instance import Bools, Floats, Ints
from placement.solver.traffic.layer_tokens import LayerTokens
from placement.solver.traffic.serving import remote_KSG


@dataclass(frozen=True, eq=False)
class Change:
    """Rows of some tokens as they would be, and by how many copies per token the layer would change."""

    token_X: Ints
    certain_XSG: npt.NDArray[np.int8]
    missed_XSG: npt.NDArray[np.float32]
    copies: float


class LayerCopies:
    """Copies of a layer's tokens under hosts that change.

    Parameters
    ----------
    tokens : LayerTokens
    hosts_EG : ndarray
        bool, every expert on one GPU at least.
    has_replicas : bool
        False promises that every expert will have one host at any time.
    """

    def __init__(self, tokens: LayerTokens, hosts_EG: Bools, *, has_replicas: bool) -> None:
        self.tokens = tokens
        self.hosts_EG = hosts_EG.copy()
        self.of_experts = tokens.of_experts
        self.one_row = tokens.home_T is None and not has_replicas
        self._weight = 1.0 if tokens.home_T is not None else 1.0 / tokens.gpus
        if self.one_row:
            # A needed GPU is remote for all sources but one.
            self._weight = 1.0 - 1.0 / tokens.gpus
        self._sent_ESG = self._sent(self.hosts_EG)
        self._is_affected_T = np.zeros(tokens.tokens, dtype=np.bool_)
        self._place_T = np.zeros(tokens.tokens, dtype=np.int64)
        self._recount()

    @property
    def copies(self) -> float:
        """Mean remote GPUs per token."""
        return self._needs(self._certain_TSG, self._missed_TSG) * self._weight / self.tokens.tokens

    @property
    def copies_SG(self) -> Floats:
        """Mean copies per token by home and destination; float64 [S, G], adds up to :attr:`copies`."""
        gpus, tokens = self.tokens.gpus, self.tokens.tokens
        if self.one_row:
            per_gpu_G = np.count_nonzero(self._certain_TSG[:, 0], axis=0) / tokens / gpus
            return np.where(np.eye(gpus, dtype=np.bool_), 0.0, per_gpu_G[None])
        needs_TSG = 1.0 - self._missed_TSG * (self._certain_TSG == 0)
        if self.tokens.home_T is None:
            spread_SG: Floats = needs_TSG.sum(axis=0, dtype=np.float64) / tokens / gpus
            return spread_SG
        copies_SG = np.zeros((gpus, gpus))
        np.add.at(copies_SG, self.tokens.home_T, needs_TSG[:, 0].astype(np.float64) / tokens)
        return copies_SG

    def _sent(self, hosts_KG: Bools) -> Floats:
        """Return the chances of being sent; [K, 1, G] where one row stands for all sources, else [K, S, G]."""
        if self.one_row:
            return hosts_KG[:, None, :].astype(np.float64)
        return remote_KSG(hosts_KG, nodes=self.tokens.nodes)

    def _recount(self) -> None:
        """Work the rows out from the hosts; what changes left behind in rounding goes."""
        rows = 1 if self.one_row or self.tokens.home_T is not None else self.tokens.gpus
        shape = (self.tokens.tokens, rows, self.tokens.gpus)
        self._certain_TSG = np.zeros(shape, dtype=np.int8)
        self._missed_TSG = np.ones(shape, dtype=np.float32)
        for expert, token_X in enumerate(self.of_experts):
            certain, chance = self._factors(self._sent_ESG[expert], token_X)
            self._certain_TSG[token_X] += certain
            if chance is not None:
                self._missed_TSG[token_X] *= chance

    def _factors(self, sent_SG: Floats, token_X: Ints) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32] | None]:
        """Return an expert's part in its tokens' rows: certain or not, and the chance of being missed (None: all 1)."""
        certain_SG = sent_SG >= 1.0
        certain = certain_SG.astype(np.int8)
        chance = None
        if ((sent_SG > 0) & ~certain_SG).any():
            chance = np.where(certain_SG, 1.0, 1.0 - sent_SG).astype(np.float32)
        if self.tokens.home_T is not None:
            home_X = self.tokens.home_T[token_X]
            return certain[home_X][:, None], None if chance is None else chance[home_X][:, None]
        return certain[None], None if chance is None else chance[None]

    def exposed_ESG(self) -> Floats:
        """Return, per expert, the mean over all tokens of its tokens' rows that need a GPU for no other expert.

        What an expert costs is ``sum_sg exposed * sent``, whatever its hosts: the rows without it do not depend on
        them. float64 [E, S, G], 0 for g = s.
        """
        gpus = self.tokens.gpus
        exposed_ESG = np.empty((self.tokens.experts, gpus, gpus))
        for expert, token_X in enumerate(self.of_experts):
            certain, chance = self._factors(self._sent_ESG[expert], token_X)
            if self.one_row:
                alone_SG = np.count_nonzero(self._certain_TSG[token_X] == certain, axis=0)
                exposed_ESG[expert] = alone_SG
                continue
            missed_XSG = self._missed_TSG[token_X]
            if chance is not None:
                missed_XSG = missed_XSG / chance
            alone_XSG = np.where(self._certain_TSG[token_X] == certain, missed_XSG, np.float32(0.0))
            if self.tokens.home_T is None:
                exposed_ESG[expert] = alone_XSG.sum(axis=0, dtype=np.float64)
                continue
            home_X = self.tokens.home_T[token_X]
            starts = np.flatnonzero(np.diff(home_X, prepend=-1))
            exposed_ESG[expert] = 0.0
            if len(starts):
                by_home = np.add.reduceat(alone_XSG[:, 0].astype(np.float64), starts, axis=0)
                exposed_ESG[expert, home_X[starts]] = by_home
        exposed_ESG[:, np.arange(gpus), np.arange(gpus)] = 0.0
        # Every source's row stands for its share of the tokens; one row for all stands for each source alike.
        share = 1.0 / gpus if self.one_row else self._weight
        return exposed_ESG * (share / self.tokens.tokens)

    def change(self, experts: list[int], hosts_KG: Bools) -> Change:
        """Work out what new hosts of some experts would change, exactly."""
        for expert in experts:
            self._is_affected_T[self.of_experts[expert]] = True
        token_X = np.flatnonzero(self._is_affected_T)
        self._is_affected_T[token_X] = False
        self._place_T[token_X] = np.arange(len(token_X))
        certain_XSG, missed_XSG = self._certain_TSG[token_X], self._missed_TSG[token_X]
        before = self._needs(certain_XSG, missed_XSG)
        for expert, sent_SG in zip(experts, self._sent(hosts_KG), strict=True):
            own_X = self.of_experts[expert]
            place_X = self._place_T[own_X]
            certain_old, chance_old = self._factors(self._sent_ESG[expert], own_X)
            certain_new, chance_new = self._factors(sent_SG, own_X)
            certain_XSG[place_X] += certain_new - certain_old
            if chance_old is not None:
                missed_XSG[place_X] /= chance_old
            if chance_new is not None:
                missed_XSG[place_X] *= chance_new
        gained = self._needs(certain_XSG, missed_XSG) - before
        return Change(token_X, certain_XSG, missed_XSG, gained * self._weight / self.tokens.tokens)

    def _needs(self, certain_XSG: npt.NDArray[np.int8], missed_XSG: npt.NDArray[np.float32]) -> float:
        if self.one_row:
            return float(np.count_nonzero(certain_XSG))
        missed = missed_XSG * (certain_XSG == 0)
        return certain_XSG.size - float(missed.sum(dtype=np.float64))

    def apply(self, experts: list[int], hosts_KG: Bools, change: Change) -> None:
        """Take new hosts, with what :meth:`change` said about them."""
        self._certain_TSG[change.token_X] = change.certain_XSG
        self._missed_TSG[change.token_X] = change.missed_XSG
        self.hosts_EG[experts] = hosts_KG
        self._sent_ESG[experts] = self._sent(hosts_KG)
