"""Layers with few experts and GPUs: branch and bound over replica counts and the contents of GPUs.

For dispatch that gives every replica of an expert the same load wherever it is (``even``; ``nearest-dynamic`` with
uniform sources on one node), GPUs are interchangeable and a layer's layout is: how many replicas n_e each expert has,
and G *contents*, sets of S experts, that together use expert e n_e times. A content A puts the load
``v[w] = sum_{e in A} w_e / n_e`` on its GPU. At prices mu_w >= 0 that add up to 1, the layer's *peak* is
``F = sum_w mu_w max_g v[g, w]``, in units of the mean GPU load.

The linear relaxation over host sets is worthless here: spreading every column over all GPUs makes all loads equal,
so it says 1 whatever the counts. What does bind is that whole contents must be filled:

Bound of a part of a layout. Let k contents be fixed, with largest load ``m[w]`` and sum ``c[w]``. The G - k others
share ``G - c[w]``, so one of them has at least the mean of that, and

    F >= sum_w mu_w max( m[w], (G - c[w]) / (G - k) )

One content (k = 1) already refutes: its load must be near the mean in *all* windows at once. Hence the first bound of
a vector of counts: every expert is in some content, so F is at least the largest over experts of the smallest bound
over contents with that expert. Then contents are fixed one after the other, always one that holds the first
expert with replicas left, in ascending order while that expert stays the same (GPUs are interchangeable).

The search is best first over vectors of counts and depth first inside; cut short, what it has not refuted keeps its
bound, so the result is proven at any time (Land and Doig 1960, doi:10.2307/1910129).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.small_shape import Shape

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BEAM = 1000
"""Parts kept at every level when looking for a first complete layout."""

CHUNK = 2048
"""Parts expanded at once."""

LIKELY_VECTORS, TABLED_AT_ONCE = 4000, 50_000
"""Vectors of counts looked at for that, and tabled together for the bounds."""

VECTORS_AT_ONCE = 256
"""Vectors of counts searched together, most promising first."""

SLACK, SINGLE_SLACK = 1e-9, 1e-6
"""Bounds are lowered by this part: more than a sum of loads loses in double, and a table in single precision."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer at given prices: maximise ``sum_e worth[e] n_e - price * F``.

    Attributes
    ----------
    tokens_WE : ndarray
        float64, tokens over the mean GPU load; windows of price 0 left out.
    part_W : ndarray
        float64, mu: adds up to 1.
    price : float
        What a unit of F costs, > 0.
    worth_E : ndarray
        float64, what one replica is worth.
    """

    tokens_WE: Floats
    part_W: Floats
    price: float
    worth_E: Floats


@dataclass(frozen=True, eq=False)
class LayerBound:
    """What a search proved.

    Attributes
    ----------
    bound : float
        No layout is worth more.
    experts_GS : ndarray or None
        int64 [G, S], the best layout found, the experts of every GPU; None if none was found.
    is_optimum : bool
        That layout reaches the bound.
    """

    bound: float
    experts_GS: Ints | None
    is_optimum: bool


def best_possible(shape: Shape, layer: Layer, *, nodes: int) -> LayerBound:
    """Bound ``sum_e worth[e] n_e - price * F`` over all layouts of a layer, looking at about ``nodes`` parts."""
    search = _Search(shape, layer)
    search.use(search.likely_vectors())
    search.dive(np.arange(min(BEAM, len(search.vectors.bound_C))))
    search.use(search.vectors_above_reached())
    bound_C = search.vectors.bound_C
    for first in range(0, len(bound_C), VECTORS_AT_ONCE):
        if bound_C[first] <= search.reached:
            break
        rows_C = np.arange(first, min(first + VECTORS_AT_ONCE, len(bound_C)))
        if not search.search_below(rows_C, nodes=nodes):
            unsearched = float(bound_C[first + VECTORS_AT_ONCE :].max(initial=-np.inf))
            return LayerBound(max(search.reached, search.open_bound, unsearched), search.experts_GS, False)
    return LayerBound(search.reached, search.experts_GS, True)


@dataclass(frozen=True, eq=False)
class _Vectors:
    """Vectors of counts, most promising first, with what is known of them before any content is fixed."""

    counts_CE: Ints
    worth_C: Floats
    alone_CA: npt.NDArray[np.float32]
    bound_C: Floats

    def pick(self, chosen: Bools | Ints) -> _Vectors:
        return _Vectors(self.counts_CE[chosen], self.worth_C[chosen], self.alone_CA[chosen], self.bound_C[chosen])

    @classmethod
    def joined(cls, parts: list[_Vectors]) -> _Vectors:
        return cls(
            np.concatenate([part.counts_CE for part in parts]),
            np.concatenate([part.worth_C for part in parts]),
            np.concatenate([part.alone_CA for part in parts]),
            np.concatenate([part.bound_C for part in parts]),
        )


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Parts of layouts, all with equally many contents fixed."""

    counts_M: Ints
    left_ME: Ints
    contents_MK: Ints
    peak_MW: Floats
    sum_MW: Floats
    bound_M: Floats

    @property
    def fixed(self) -> int:
        return int(self.contents_MK.shape[1])

    def pick(self, chosen: Bools | Ints | slice) -> _Nodes:
        return _Nodes(
            self.counts_M[chosen],
            self.left_ME[chosen],
            self.contents_MK[chosen],
            self.peak_MW[chosen],
            self.sum_MW[chosen],
            self.bound_M[chosen],
        )


class _Search:
    """State of one layer's search; ``reached`` is what the best complete layout so far is worth, less rounding."""

    def __init__(self, shape: Shape, layer: Layer) -> None:
        self.shape, self.layer = shape, layer
        self.reached = -np.inf
        self.open_bound = -np.inf
        self.experts_GS: Ints | None = None
        self.looked_at = 0
        self.alone_KA = self._alone_KA()
        self.vectors = self._vectors(shape.counts_CE[:0])
        self.rank_CE = self.vectors.counts_CE

    def use(self, vectors: _Vectors) -> None:
        """Go over to other vectors of counts."""
        self.vectors = vectors.pick(np.argsort(-vectors.bound_C, kind="stable"))
        self.rank_CE = np.zeros_like(self.vectors.counts_CE)

    def likely_vectors(self) -> _Vectors:
        """Return vectors that are worth much and have replicas of equal load: a guess, nothing is proven by it."""
        shape, layer = self.shape, self.layer
        square_E = (layer.part_W @ layer.tokens_WE) ** 2
        uneven_C = (1.0 / shape.counts_CE) @ square_E
        guess_C = shape.counts_CE @ layer.worth_E - layer.price * uneven_C / max(float(uneven_C.min()), SLACK)
        return self._vectors(shape.counts_CE[np.argsort(-guess_C, kind="stable")[:LIKELY_VECTORS]])

    def vectors_above_reached(self) -> _Vectors:
        """Return all vectors of counts that may lead above ``reached``."""
        shape, layer = self.shape, self.layer
        # Step 1: experts and counts that no content allows, whatever the other counts are. [G, E]
        most_worth = float((shape.counts_CE @ layer.worth_E).max())
        allowed_GE = np.zeros((shape.gpus, shape.counts_CE.shape[1]), dtype=np.bool_)
        for content, members_S in enumerate(shape.members_AS):
            may_K = most_worth - layer.price * self.alone_KA[:, content] * (1 - SLACK) > self.reached
            for place, expert in enumerate(members_S.tolist()):
                allowed_GE[shape.combinations_KS[may_K, place] - 1, expert] = True
        expert_E = np.arange(shape.counts_CE.shape[1])
        counts_CE = shape.counts_CE[allowed_GE[shape.counts_CE - 1, expert_E].all(axis=1)]
        # Step 2: vectors by their own bounds, some at a time.
        parts = [self._vectors(counts_CE[:0])]
        for first in range(0, len(counts_CE), TABLED_AT_ONCE):
            tabled = self._vectors(counts_CE[first : first + TABLED_AT_ONCE])
            parts.append(tabled.pick(tabled.bound_C > self.reached))
        return _Vectors.joined(parts)

    def _vectors(self, counts_CE: npt.NDArray[np.integer]) -> _Vectors:
        shape, layer = self.shape, self.layer
        alone_CA = np.empty((len(counts_CE), len(shape.holds_AE)), dtype=np.float32)
        for content, code_C in enumerate(shape.codes(counts_CE)):
            alone_CA[:, content] = self.alone_KA[code_C, content]
        alone_CA *= 1 - SINGLE_SLACK
        hardest_C = np.ones(len(counts_CE))
        for expert in range(counts_CE.shape[1]):
            hardest_C = np.maximum(hardest_C, alone_CA[:, shape.holds_AE[:, expert]].min(axis=1))
        worth_C = counts_CE @ layer.worth_E
        bound_C = worth_C - layer.price * hardest_C * (1 - SLACK)
        return _Vectors(counts_CE.astype(np.int64), worth_C, alone_CA, bound_C)

    def _alone_KA(self) -> Floats:
        """Return the bound on F of every content by itself, for all counts of its members; [K, A]."""
        shape, layer = self.shape, self.layer
        alone_KA = np.empty((len(shape.combinations_KS), len(shape.holds_AE)))
        for content, members_S in enumerate(shape.members_AS):
            load_WK = layer.tokens_WE[:, members_S] @ (1.0 / shape.combinations_KS.T)
            alone_KA[:, content] = layer.part_W @ self._at_least(load_WK, load_WK, left=shape.gpus - 1)
        return alone_KA

    def _at_least(self, peak: Floats, total: Floats, *, left: int) -> Floats:
        """Return what the largest load of a window is at least, with ``left`` contents not fixed."""
        return np.maximum(peak, (self.shape.gpus - total) / left) if left else peak

    def search_below(self, rows_C: Ints, *, nodes: int) -> bool:
        """Search all layouts with some vectors of counts; False when ``nodes`` is used up before the end."""
        stack = [self._start(rows_C)]
        while stack:
            if self.looked_at > nodes:
                self.open_bound = max(float(part.bound_M.max()) for part in stack)
                return False
            part = stack.pop()
            children = self._expand(part.pick(part.bound_M > self.reached))
            self.looked_at += len(children.bound_M)
            if not children.bound_M.size:
                continue
            if children.fixed == self.shape.gpus:
                self._note_complete(children)
                continue
            # The best ones on top of the stack: they find complete layouts early.
            children = children.pick(np.argsort(children.bound_M, kind="stable"))
            stack += [children.pick(slice(at, at + CHUNK)) for at in range(0, len(children.bound_M), CHUNK)]
        return True

    def dive(self, rows_C: Ints) -> None:
        """Look for a good complete layout: keep only the most promising parts at every level."""
        part = self._start(rows_C)
        while part.bound_M.size and part.fixed < self.shape.gpus:
            part = self._expand(part)
            part = part.pick(np.argsort(-part.bound_M, kind="stable")[:BEAM])
        if part.bound_M.size:
            self._note_complete(part)

    def _start(self, rows_C: Ints) -> _Nodes:
        """Nothing fixed yet. Experts are filled in a fixed order: those with the fewest contents that fit first."""
        vectors = self.vectors.pick(rows_C)
        fits_CA = vectors.worth_C[:, None] - self.layer.price * vectors.alone_CA > self.reached
        choices_CE = fits_CA.astype(np.float32) @ self.shape.holds_AE.astype(np.float32)
        self.rank_CE[rows_C] = choices_CE.argsort(axis=1, kind="stable").argsort(axis=1)
        zeros_CW = np.zeros((len(rows_C), len(self.layer.part_W)))
        nothing_CK = np.zeros((len(rows_C), 0), dtype=np.int64)
        return _Nodes(rows_C, vectors.counts_CE, nothing_CK, zeros_CW, zeros_CW, vectors.bound_C)

    def _note_complete(self, part: _Nodes) -> None:
        best = int(part.bound_M.argmax())
        if part.bound_M[best] > self.reached:
            self.reached = float(part.bound_M[best])
            self.experts_GS = self.shape.members_AS[part.contents_MK[best]]

    def _expand(self, part: _Nodes) -> _Nodes:
        """Fix one more content in every part, in all ways that may still lead above ``reached``."""
        shape, layer, vectors = self.shape, self.layer, self.vectors
        left = shape.gpus - part.fixed - 1
        # Step 1: contents with the first expert left, which must be ascending as long as it stays the same. [M, A]
        rank_ME = self.rank_CE[part.counts_M]
        first_M = np.where(part.left_ME > 0, rank_ME, len(self.rank_CE[0])).argmin(axis=1)
        fits_MA = shape.holds_AE.T[first_M]
        if part.fixed:
            last_M = part.contents_MK[:, -1]
            # The last content was fixed for its member that comes first in the order.
            same_M = np.where(shape.holds_AE[last_M], rank_ME, len(self.rank_CE[0])).argmin(axis=1) == first_M
            fits_MA &= ~same_M[:, None] | (np.arange(len(shape.holds_AE)) >= last_M[:, None])
        # Step 2: by itself every content must allow more than is reached, and its experts must be left.
        worth_M1 = vectors.worth_C[part.counts_M][:, None]
        fits_MA &= worth_M1 - layer.price * vectors.alone_CA[part.counts_M] * (1 - SLACK) > self.reached
        fits_MA &= (part.left_ME == 0).astype(np.float32) @ shape.holds_AE.T.astype(np.float32) == 0
        # Step 3: an expert with as many replicas left as there are GPUs must be in this content.
        due_ME = part.left_ME > left
        fits_MA &= due_ME.astype(np.float32) @ (~shape.holds_AE.T).astype(np.float32) == 0
        row_X, content_X = np.nonzero(fits_MA)
        # Step 4: loads and bounds of what is left. [X, W]
        counts_X = part.counts_M[row_X]
        inverse_XE = shape.holds_AE[content_X] / vectors.counts_CE[counts_X]
        load_XW = inverse_XE @ layer.tokens_WE.T
        peak_XW = np.maximum(part.peak_MW[row_X], load_XW)
        sum_XW = part.sum_MW[row_X] + load_XW
        bound_X = vectors.worth_C[counts_X] - layer.price * (1 - SLACK) * (
            self._at_least(peak_XW, sum_XW, left=left) @ layer.part_W
        )
        left_XE = part.left_ME[row_X] - shape.holds_AE[content_X]
        contents_XK = np.column_stack([part.contents_MK[row_X], content_X])
        children = _Nodes(counts_X, left_XE, contents_XK, peak_XW, sum_XW, bound_X)
        return children.pick(bound_X > self.reached)
