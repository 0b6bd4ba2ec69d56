"""How few copies per token any layout can have: no more experts can be together than fit on a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from placement.bounds.pairs import most_pairs_together
from placement.tokens import Tokens
from placement.topology import Topology

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

EIGENVALUE_WORK = 4e9
"""Cubes of experts, all layers together, that the bound by pairs may take; models with many experts go without."""

MOST_ROUNDS, FEWEST_ROUNDS = 120, 8

MOST_PREFIXES = 24
"""Companions picked one by one per expert; with more slots per GPU the rest is bounded by what each adds alone."""

BY_COMPANIONS = "every expert beside its best companions, no balance limit (submodular maximum)"
BY_PAIRS = "pairs of experts on one GPU (eigenvalue bound), no balance limit"
BY_HOMES = "tokens that stay home as a whole, hottest experts on every GPU, no balance limit"


@dataclass(frozen=True)
class CopiesBound:
    """A lower bound on copies per token, and the relaxation it is the optimum of.

    Attributes
    ----------
    layers : mapping
        Decoder layer to the fewest copies of all its tokens, and the relaxation.
    pairs : int
        (token, layer) pairs with experts.
    """

    layers: Mapping[int, tuple[float, str]]
    pairs: int

    @property
    def value(self) -> float:
        return max(0.0, math.fsum(copies for copies, _ in self.layers.values()) / self.pairs)

    @property
    def relaxation(self) -> str:
        return "; ".join(dict.fromkeys(name for _, name in self.layers.values()))

    def with_layer(self, layer: int, copies: float, relaxation: str) -> CopiesBound:
        """Take another bound for one layer, if it is tighter."""
        if copies <= self.layers[layer][0]:
            return self
        return replace(self, layers={**self.layers, layer: (copies, relaxation)})


def copies_bound(tokens: Tokens, topology: Topology, slots_per_gpu: int) -> CopiesBound:
    """Bound ``gpus_per_token`` from below for these tokens, under every nearest dispatch, whatever the balance.

    Take a token with k experts in a layer and any way to serve it. Say c of its experts meet on a GPU: each of them
    may count (c - 1) / c as saved, so that the GPUs used are k minus all that is saved. An expert shares its GPU with
    at most ``slots_per_gpu - 1`` others, its companions N. Which of its replicas serves a token depends on the token's
    home and on a draw, not on the token's other experts, so over the tokens of one home it saves at most

        max over N of  sum over its tokens of  x / (x + 1),  x = the token's experts among N,

    and with uniform homes, where every home sees all tokens alike, over all tokens at most that of all. The function
    is monotone and submodular, so for any set N' the maximum is at most its value plus the largest marginals
    (Nemhauser, Wolsey, Fisher 1978, doi:10.1007/BF01588971; Leskovec et al. 2007, doi:10.1145/1281192.1281239): the
    smallest such bound over a greedy sequence of sets is taken. Of the GPUs used one may be the home GPU. Without
    replicas uniform homes make it 1 / GPUs of them; otherwise home is used by no more tokens than any
    ``slots_per_gpu`` experts can touch, bounded the same way.

    Two more bounds hold beside it, and the best of each layer is taken. A token is sent nowhere only if all its experts
    are at home, and the share of experts at home is at most that of the hottest ``slots_per_gpu``. And
    :func:`_by_pairs`: few pairs of experts can share a GPU.

    Returns
    -------
    CopiesBound
        At least 0.
    """
    layers, pairs = {}, 0
    rounds = _rounds(tokens, topology, slots_per_gpu)
    for layer in tokens.moe_layers:
        chosen_TE = _chosen(tokens, layer)
        used_T = chosen_TE.any(axis=1)
        home_T = None if tokens.home_T is None else tokens.home_T[used_T]
        chosen_TE = chosen_TE[used_T]
        found = {
            BY_COMPANIONS: _by_companions(chosen_TE, home_T, topology, slots_per_gpu),
            BY_HOMES: _by_homes(chosen_TE, home_T, topology, slots_per_gpu),
        }
        if rounds >= FEWEST_ROUNDS:
            found[BY_PAIRS] = _by_pairs(chosen_TE, home_T, topology, slots_per_gpu, rounds=rounds)
        best = max(found, key=lambda name: found[name])
        layers[layer] = (found[best], best)
        pairs += len(chosen_TE)
    return CopiesBound(layers, pairs)


def _chosen(tokens: Tokens, layer: int) -> Floats:
    """Return which experts every token has, 1 or 0; float64 [T, E]."""
    chosen_TE = np.zeros((tokens.tokens, tokens.experts + 1))
    rows_TK = np.minimum(tokens.experts_LTK[layer], tokens.experts)
    chosen_TE[np.arange(tokens.tokens)[:, None], rows_TK] = 1.0
    return chosen_TE[:, :-1]


def _by_companions(
    chosen_TE: Floats, home_T: npt.NDArray[np.int32] | None, topology: Topology, slots_per_gpu: int
) -> float:
    """Bound the copies of one layer by what experts can save together."""
    experts = chosen_TE.shape[1]
    parts = _by_home(chosen_TE, home_T)
    saved = math.fsum(
        largest_sum(_others(part_TE, expert), picks=slots_per_gpu - 1, gain_X=1 / _rising(experts + 2))
        for part_TE in parts
        for expert in np.flatnonzero(part_TE.any(axis=0)).tolist()
    )
    used = max(float(chosen_TE.sum()) - saved, float(np.ceil(chosen_TE.sum(axis=1) / slots_per_gpu).sum()))
    if home_T is None and slots_per_gpu * topology.gpus == experts:
        return used * (1 - 1 / topology.gpus)
    first_only_X = np.zeros(experts + 2)
    first_only_X[0] = 1.0
    return used - math.fsum(largest_sum(part_TE, picks=slots_per_gpu, gain_X=first_only_X) for part_TE in parts)


def _rounds(tokens: Tokens, topology: Topology, slots_per_gpu: int) -> int:
    """Return how many steps the bound by pairs may take for each set of tokens that is bounded alone."""
    alone = 1 if tokens.home_T is None or slots_per_gpu * topology.gpus == tokens.experts else topology.gpus
    cubes = max(1, alone * len(tokens.moe_layers)) * tokens.experts**3
    return min(MOST_ROUNDS, int(EIGENVALUE_WORK / cubes))


def _by_pairs(
    chosen_TE: Floats, home_T: npt.NDArray[np.int32] | None, topology: Topology, slots_per_gpu: int, *, rounds: int
) -> float:
    """Bound the copies of one layer by the pairs of experts that can share a GPU.

    The tokens of one home are served from one GPU per expert (where replicas are drawn: for each draw), at most S
    experts from each. A token with k experts on d GPUs has at least ``m(k, d)`` pairs together, that of an even split.
    So for any price s >= 0 of a pair, d is at least ``a(k) - s p`` with ``a(k) = min over d of d + s m(k, d)`` and p
    the token's pairs together, and all tokens' pairs together are at most :func:`most_pairs_together`.

    Copies leave home out. A token with n experts at home is sent to at least ``a(k - n) - s (p - n (n - 1) / 2)`` GPUs,
    that is ``a(k) - a(k - n) - s n (n - 1) / 2`` fewer than the above; over all tokens that is at most what
    ``slots_per_gpu`` experts at home can be worth, bounded as before. Without replicas and with uniform homes a token's
    home is among its d GPUs for d of all GPUs. The best price is taken.
    """
    experts, full = chosen_TE.shape[1], slots_per_gpu * topology.gpus == chosen_TE.shape[1]
    alone = [chosen_TE] if full else _by_home(chosen_TE, home_T)
    together = math.fsum(
        most_pairs_together(
            _pairs(part_TE), gpus=topology.gpus, slots_per_gpu=min(slots_per_gpu, experts), rounds=rounds
        )
        for part_TE in alone
    )
    count_T = chosen_TE.sum(axis=1).astype(np.int64)
    most = int(count_T.max())
    bounds = []
    for price in _prices(most, topology.gpus):
        worth_K = np.array([_least_of_even_splits(k, price, topology.gpus, slots_per_gpu) for k in range(most + 1)])
        used = float(worth_K[count_T].sum()) - price * together
        if home_T is None and full:
            bounds.append(used * (1 - 1 / topology.gpus))
            continue
        gain_X = _gains_at_home(worth_K, price, np.unique(count_T), experts)
        homes = _by_home(chosen_TE, home_T)
        bounds.append(used - math.fsum(largest_sum(part_TE, picks=slots_per_gpu, gain_X=gain_X) for part_TE in homes))
    return max(0.0, *bounds)


def _pairs(chosen_TE: Floats) -> Floats:
    """Return how many tokens have both experts, 0 on the diagonal; float64 [E, E]."""
    pairs_EE = chosen_TE.T @ chosen_TE
    np.fill_diagonal(pairs_EE, 0.0)
    return pairs_EE


def _pairs_of_even_split(count: int, parts: int) -> int:
    size, larger = divmod(count, parts)
    return (parts - larger) * size * (size - 1) // 2 + larger * (size + 1) * size // 2


def _least_of_even_splits(count: int, price: float, gpus: int, slots_per_gpu: int) -> float:
    if count == 0:
        return 0.0
    parts = range(-(-count // slots_per_gpu), min(count, gpus) + 1)
    return min(each + price * _pairs_of_even_split(count, each) for each in parts)


def _prices(count: int, gpus: int) -> list[float]:
    """Return the prices at which another number of GPUs becomes best, for up to so many experts of a token."""
    prices = {0.0}
    for experts in range(2, count + 1):
        splits = [_pairs_of_even_split(experts, parts) for parts in range(1, min(experts, gpus) + 1)]
        prices |= {1 / (more - less) for more, less in pairwise(splits) if more > less}
    return sorted(prices)


def _gains_at_home(worth_K: Floats, price: float, counts: Ints, experts: int) -> Floats:
    """Return what the x-th expert at home is worth at most, for a token with any of these counts; never rising."""
    gain_X = np.zeros(experts + 2)
    for count in counts.tolist():
        at_home = np.arange(count + 1)
        worth_X = worth_K[count] - worth_K[count - at_home] - price * at_home * (at_home - 1) / 2
        gain_X[:count] = np.maximum(gain_X[:count], np.diff(worth_X))
    return np.maximum.accumulate(np.maximum(gain_X, 0.0)[::-1])[::-1]


def _by_home(chosen_TE: Floats, home_T: npt.NDArray[np.int32] | None) -> list[Floats]:
    """Return the tokens of every home; all together where homes are uniform."""
    return [chosen_TE] if home_T is None else [chosen_TE[home_T == gpu] for gpu in np.unique(home_T)]


def _others(chosen_TE: Floats, expert: int) -> Floats:
    """Return the tokens of an expert, without itself."""
    others_TE = chosen_TE[chosen_TE[:, expert] > 0]
    others_TE[:, expert] = 0.0
    return others_TE


def _rising(count: int) -> Floats:
    """Return (x + 1) (x + 2) for x = 0, 1, ...: one companion more saves one over that."""
    x = np.arange(count, dtype=np.float64)
    return np.asarray((x + 1) * (x + 2))


def _by_homes(chosen_TE: Floats, home_T: npt.NDArray[np.int32] | None, topology: Topology, slots_per_gpu: int) -> float:
    """Bound the copies of one layer by the tokens that can stay home as a whole."""
    copies = 0.0
    for part_TE in _by_home(chosen_TE, home_T):
        # A token's experts count 1 / k each, so that tokens that are all at home count 1.
        share_E = (part_TE / part_TE.sum(axis=1, keepdims=True)).sum(axis=0)
        copies += len(part_TE) - float(np.sort(share_E)[-slots_per_gpu:].sum())
    return copies


def largest_sum(chosen_TE: Floats, *, picks: int, gain_X: Floats) -> float:
    """Bound from above what ``picks`` experts can be worth, when a token gains ``gain_X[x]`` by the x-th of its own.

    ``gain_X`` must not rise. See :func:`copies_bound` for the proof.
    """
    have_T = np.zeros(len(chosen_TE), dtype=np.int64)
    open_E = np.ones(chosen_TE.shape[1])
    value, bound = 0.0, np.inf
    for _ in range(min(picks, MOST_PREFIXES) + 1):
        more_E = (gain_X[have_T] @ chosen_TE) * open_E
        bound = min(bound, value + float(np.sort(more_E)[len(more_E) - min(picks, len(more_E)) :].sum()))
        best = int(more_E.argmax())
        if more_E[best] <= 0:
            break
        value += float(more_E[best])
        have_T += chosen_TE[:, best].astype(np.int64)
        open_E[best] = 0.0
    return bound
