"""Which replica serves a (token, expert) pair: the replay engine's own reading of SGLang's rules.

Written from SGLang 0.5.23, ``srt/eplb/expert_location.py`` and ``expert_location_dispatch.py``, and checked against
tables made by those files' own functions. It shares no code with ``placement.dispatch``: the replay engine measures
layouts that the ruler predicts, so the two must be able to disagree.

With an all-to-all backend every rank dispatches its own tokens. It first reduces the list of an expert's slots to
one, where some slot is "nearest" to it: a slot on the same GPU, or else, if the own node holds some but not all of
them, the first one there. Where nothing is nearest, ``dynamic`` picks a slot at random for every token, ``static``
uses a table drawn once. Without an all-to-all backend all ranks see all tokens and pick by the token's row.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int32]

STATIC_TABLE_SEED = 42
"""SGLang draws every rank's static table from ``random.Random(42)``."""

RANDOM_PICK_RANGE = 65536
"""SGLang draws an integer below 65536 for every pair and takes it modulo the number of replicas."""

_ABSENT = -1


@dataclass(frozen=True, eq=False)
class ReplicaLists:
    """The slots of every expert, in slot order.

    Attributes
    ----------
    slots_LEX : ndarray
        int32 [L, E, X], -1 after an expert's last slot; X is the largest number of replicas.
    replicas_LE : ndarray
        int64 [L, E].
    """

    slots_LEX: Slots
    replicas_LE: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ranks:
    """How slots and ranks lie: slot ``p`` on GPU ``p // slots_per_gpu``, GPU ``g`` in node ``g // gpus_per_node``."""

    gpus: int
    gpus_per_node: int
    slots_per_gpu: int


def list_replicas(map_LP: npt.NDArray[np.int32], *, experts: int) -> ReplicaLists:
    """Turn a map [L, P] round: for every expert its slots, ascending."""
    layers, slots = map_LP.shape
    replicas_LE = np.stack([np.bincount(row_P, minlength=experts) for row_P in map_LP])
    slots_LEX = np.full((layers, experts, int(replicas_LE.max())), _ABSENT, dtype=np.int32)
    by_expert_LP = np.argsort(map_LP, axis=1, kind="stable").astype(np.int32)
    first_LE = np.cumsum(replicas_LE, axis=1) - replicas_LE
    for layer in range(layers):
        ordered_P = map_LP[layer, by_expert_LP[layer]]
        slots_LEX[layer, ordered_P, np.arange(slots) - first_LE[layer, ordered_P]] = by_expert_LP[layer]
    return ReplicaLists(slots_LEX, replicas_LE)


def nearest_slot(slots_MX: Slots, *, rank: int, ranks: Ranks) -> Slots:
    """Return, for M lists of slots, the one nearest to a rank, -1 where none is.

    Steps: a single slot is nearest to everybody; else the first on the own GPU; else, when the own node holds some
    of them but not all, the first in the own node.
    """
    present_MX = slots_MX != _ABSENT
    replicas_M = present_MX.sum(axis=1)
    gpu_MX = slots_MX // ranks.slots_per_gpu
    on_gpu_MX = present_MX & (gpu_MX == rank)
    on_node_MX = present_MX & (gpu_MX // ranks.gpus_per_node == rank // ranks.gpus_per_node)
    on_node_M = on_node_MX.sum(axis=1)
    nearest_M = np.full(len(slots_MX), _ABSENT, dtype=np.int32)
    for rows_M, among_MX in (
        ((on_node_M > 0) & (on_node_M < replicas_M), on_node_MX),
        (on_gpu_MX.any(axis=1), on_gpu_MX),
        (replicas_M == 1, present_MX),
    ):
        rows = np.flatnonzero(rows_M)
        nearest_M[rows] = slots_MX[rows, among_MX[rows].argmax(axis=1)]
    return nearest_M


def nearest_tables(replicas: ReplicaLists, *, ranks: Ranks) -> Slots:
    """Return the slot that each rank's tokens always go to, int32 [G, L, E], -1 where several stay candidates."""
    layers, experts, width = replicas.slots_LEX.shape
    slots_MX = replicas.slots_LEX.reshape(-1, width)
    nearest_GM = [nearest_slot(slots_MX, rank=rank, ranks=ranks) for rank in range(ranks.gpus)]
    return np.stack(nearest_GM).reshape(ranks.gpus, layers, experts)


def static_tables(replicas: ReplicaLists, *, ranks: Ranks) -> Slots:
    """Return the tables, int32 [G, L, E], that ranks with ``--ep-dispatch-algorithm static`` use for all their tokens.

    Each rank draws for all ranks that have no nearest slot, layer by layer and expert by expert, and keeps its own
    draw. Experts that the drawing rank has reduced to one slot draw nothing, so each rank's draws are others.
    """
    nearest_GLE = nearest_tables(replicas, ranks=ranks)
    undecided_GLE = nearest_GLE == _ABSENT
    tables_GLE = nearest_GLE.copy()
    for rank in range(ranks.gpus):
        stream = random.Random(STATIC_TABLE_SEED)
        for layer, expert in np.argwhere(undecided_GLE[rank]):
            slots_X = replicas.slots_LEX[layer, expert]
            drawing = np.flatnonzero(undecided_GLE[:, layer, expert]).tolist()
            shares = _fair_shares(slots_X[slots_X != _ABSENT].tolist(), draws=len(drawing), stream=stream)
            tables_GLE[rank, layer, expert] = shares[drawing.index(rank)]
    return tables_GLE


def _fair_shares(candidates: list[int], *, draws: int, stream: random.Random) -> list[int]:
    """Deal candidates out as evenly as possible, the remainder and the order at random."""
    rounds, rest = divmod(draws, len(candidates))
    dealt = candidates * rounds + stream.sample(candidates, k=rest)
    stream.shuffle(dealt)
    return dealt


class Dispatcher(ABC):
    """Turns the experts chosen for a step's tokens into slots."""

    @abstractmethod
    def slots_of(
        self, experts_LTK: npt.NDArray[np.int64], *, source_T: npt.NDArray[np.int64], random_picks: np.random.Generator
    ) -> Slots:
        """Return the slot of every pair, int32 [L, T, K].

        Parameters
        ----------
        experts_LTK
            Logical expert ids, all valid.
        source_T
            Home GPU of every token; tokens of all ranks in rank order.
        random_picks
            Source of random picks.
        """


@dataclass(frozen=True, eq=False)
class NearestDynamic(Dispatcher):
    """All-to-all backend with ``--ep-dispatch-algorithm dynamic``."""

    replicas: ReplicaLists
    nearest_GLE: Slots

    @classmethod
    def for_map(cls, map_LP: npt.NDArray[np.int32], *, experts: int, ranks: Ranks) -> NearestDynamic:
        replicas = list_replicas(map_LP, experts=experts)
        return cls(replicas, nearest_tables(replicas, ranks=ranks))

    def slots_of(
        self, experts_LTK: npt.NDArray[np.int64], *, source_T: npt.NDArray[np.int64], random_picks: np.random.Generator
    ) -> Slots:
        layer_L11 = np.arange(len(experts_LTK))[:, None, None]
        slots_LTK = self.nearest_GLE[source_T[None, :, None], layer_L11, experts_LTK]
        layer, token, choice = np.nonzero(slots_LTK == _ABSENT)
        expert = experts_LTK[layer, token, choice]
        picks = random_picks.integers(0, RANDOM_PICK_RANGE, size=len(expert)) % self.replicas.replicas_LE[layer, expert]
        slots_LTK[layer, token, choice] = self.replicas.slots_LEX[layer, expert, picks]
        return slots_LTK


@dataclass(frozen=True, eq=False)
class NearestStatic(Dispatcher):
    """All-to-all backend with ``--ep-dispatch-algorithm static``."""

    table_GLE: Slots

    @classmethod
    def for_map(cls, map_LP: npt.NDArray[np.int32], *, experts: int, ranks: Ranks) -> NearestStatic:
        return cls(static_tables(list_replicas(map_LP, experts=experts), ranks=ranks))

    def slots_of(
        self, experts_LTK: npt.NDArray[np.int64], *, source_T: npt.NDArray[np.int64], random_picks: np.random.Generator
    ) -> Slots:
        layer_L11 = np.arange(len(experts_LTK))[:, None, None]
        slots_LTK: Slots = self.table_GLE[source_T[None, :, None], layer_L11, experts_LTK]
        return slots_LTK


@dataclass(frozen=True, eq=False)
class ByRow(Dispatcher):
    """No all-to-all backend: row ``t`` of the gathered batch takes replica ``t`` modulo their number, on every rank."""

    replicas: ReplicaLists

    @classmethod
    def for_map(cls, map_LP: npt.NDArray[np.int32], *, experts: int, ranks: Ranks) -> ByRow:
        return cls(list_replicas(map_LP, experts=experts))

    def slots_of(
        self, experts_LTK: npt.NDArray[np.int64], *, source_T: npt.NDArray[np.int64], random_picks: np.random.Generator
    ) -> Slots:
        layer_L11 = np.arange(len(experts_LTK))[:, None, None]
        row_T1 = np.arange(len(source_T))[:, None]
        pick_LTK = row_T1 % self.replicas.replicas_LE[layer_L11, experts_LTK]
        slots_LTK: Slots = self.replicas.slots_LEX[layer_L11, experts_LTK, pick_LTK]
        return slots_LTK


@dataclass(frozen=True, eq=False)
class Unmapped(Dispatcher):
    """Started without a dispatch algorithm: SGLang takes expert ids for slots, whatever the layout says."""

    @classmethod
    def for_map(cls, map_LP: npt.NDArray[np.int32], *, experts: int, ranks: Ranks) -> Unmapped:
        return cls()

    def slots_of(
        self, experts_LTK: npt.NDArray[np.int64], *, source_T: npt.NDArray[np.int64], random_picks: np.random.Generator
    ) -> Slots:
        return experts_LTK.astype(np.int32)


def dispatcher_class(
    *, dispatch: str | None, a2a_backend: str
) -> type[NearestDynamic | NearestStatic | ByRow | Unmapped]:
    """Return the dispatcher of an engine's ``--ep-dispatch-algorithm`` and ``--moe-a2a-backend``."""
    if dispatch is None:
        return Unmapped
    if a2a_backend == "none":
        return ByRow
    return NearestStatic if dispatch == "static" else NearestDynamic
