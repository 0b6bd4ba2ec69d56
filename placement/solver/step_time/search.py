"""Exchanges that lower one layer's predicted time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.solver.deadline import Deadline
from placement.solver.instance import Bools, Floats, Ints
from placement.solver.step_time.counted import CountedCopies, CountedTokens, Sent
from placement.solver.step_time.layer import LayerTimes, Sums

BATCH = 128
"""Exchanges that are judged at once."""

TRIED = 4
"""Exchanges of a batch, the best by expected copies, whose copies are counted."""

PATIENCE = 4
"""Batches in a row without any gain that end the search."""

GAIN = 1e-9
"""Part of the time that an exchange must gain."""


@dataclass(frozen=True, eq=False)
class Exchanges:
    """A batch: expert ``out`` leaves GPU ``gpu`` and ``into`` takes its slot; in a swap ``out`` takes the other's.

    Attributes
    ----------
    out_K, into_K : ndarray
        Experts.
    gpu_K, slot_K : ndarray
        The slot that ``out`` leaves.
    other_K, other_slot_K : ndarray
        The slot that ``into`` leaves, -1 where it becomes one replica more.
    """

    out_K: Ints
    into_K: Ints
    gpu_K: Ints
    slot_K: Ints
    other_K: Ints
    other_slot_K: Ints

    def hosts(self, hosts_EG: Bools) -> tuple[Bools, Bools]:
        """Return the hosts of both experts afterwards, bool [K, G] each."""
        row = np.arange(len(self.out_K))
        out_KG, into_KG = hosts_EG[self.out_K].copy(), hosts_EG[self.into_K].copy()
        out_KG[row, self.gpu_K] = False
        into_KG[row, self.gpu_K] = True
        swaps = self.other_K >= 0
        out_KG[row[swaps], self.other_K[swaps]] = True
        into_KG[row[swaps], self.other_K[swaps]] = False
        return out_KG, into_KG


@dataclass(eq=False)
class LayerSearch:
    """A layer's slots, its hosts, its sums and its tokens' copies (None: expected from counts), kept in step."""

    times: LayerTimes
    slots_GP: Ints
    hosts_EG: Bools
    by_expert: Sums
    total: Sums
    copies: CountedCopies | None = None

    @classmethod
    def start(cls, times: LayerTimes, slots_GP: Ints, tokens: CountedTokens | None = None) -> LayerSearch:
        experts = len(times.choices_EWS)
        hosts_EG = np.zeros((experts, len(slots_GP)), dtype=bool)
        hosts_EG[slots_GP, np.arange(len(slots_GP))[:, None]] = True
        by_expert = times.sums(np.arange(experts), hosts_EG)
        copies = None if tokens is None else CountedCopies(tokens, times.shares(hosts_EG))
        return cls(times, slots_GP.copy(), hosts_EG, by_expert, by_expert.total(), copies)

    @property
    def seconds(self) -> float:
        return float(self.times.seconds(self.total, self._sent)[0])

    @property
    def _sent(self) -> Sent | None:
        return None if self.copies is None else self.copies.sent

    def improve(self, *, rounds: int, seed: int, deadline: Deadline) -> None:
        """Apply the best exchange of batch after batch."""
        rng = np.random.default_rng(seed)
        idle = 0
        for _ in range(rounds):
            if idle >= PATIENCE or deadline.passed:
                return
            idle = 0 if self._step(rng) else idle + 1

    def _step(self, rng: np.random.Generator) -> bool:
        batch = self._draw(rng)
        if not len(batch.out_K):
            return False
        out_KG, into_KG = batch.hosts(self.hosts_EG)
        old = _added(self.by_expert.pick(batch.out_K), self.by_expert.pick(batch.into_K))
        new_out, new_into = self.times.sums(batch.out_K, out_KG), self.times.sums(batch.into_K, into_KG)
        changed = self.total.changed(old, _added(new_out, new_into))
        guide_K = self.times.seconds(changed)[1]
        now = float(self.times.seconds(self.total, self._sent)[1])
        best, guide = int(guide_K.argmin()), float(guide_K.min())
        if self.copies is not None:
            tried = np.argsort(guide_K, kind="stable")[:TRIED].tolist()
            counted = [self._counted(self.copies, batch, out_KG, into_KG, changed, index) for index in tried]
            guide, best = min(zip(counted, tried, strict=True))
        if not guide < now * (1 - GAIN):
            return False
        self._apply(batch, best, out_KG[best], into_KG[best])
        return True

    def _counted(
        self, copies: CountedCopies, batch: Exchanges, out_KG: Bools, into_KG: Bools, changed: Sums, index: int
    ) -> float:
        """Return what one exchange leads to when its copies are counted."""
        shares_KSG = self.times.shares(np.stack([out_KG[index], into_KG[index]]))
        _, sent = copies.change([int(batch.out_K[index]), int(batch.into_K[index])], shares_KSG)
        return float(self.times.seconds(changed.pick(np.array(index)), sent)[1])

    def _apply(self, batch: Exchanges, index: int, out_G: Bools, into_G: Bools) -> None:
        out, into = int(batch.out_K[index]), int(batch.into_K[index])
        self.slots_GP[batch.gpu_K[index], batch.slot_K[index]] = into
        if batch.other_K[index] >= 0:
            self.slots_GP[batch.other_K[index], batch.other_slot_K[index]] = out
        self.hosts_EG[out], self.hosts_EG[into] = out_G, into_G
        changed = np.array([out, into])
        new = self.times.sums(changed, self.hosts_EG[changed])
        for name in ("rows", "active", "flow", "to_node"):
            getattr(self.by_expert, name)[changed] = getattr(new, name)
        # Added up anew, so that rounding does not gather.
        self.total = self.by_expert.total()
        if self.copies is not None:
            shares_KSG = self.times.shares(self.hosts_EG[changed])
            self.copies.apply([out, into], shares_KSG, self.copies.change([out, into], shares_KSG)[0])

    def _draw(self, rng: np.random.Generator) -> Exchanges:
        """Draw exchanges: half of them from the busiest GPU, half of them swaps."""
        gpus, slots = self.slots_GP.shape
        gpu_K = rng.integers(0, gpus, size=BATCH)
        gpu_K[: BATCH // 2] = self._busiest()
        slot_K = rng.integers(0, slots, size=BATCH)
        out_K = self.slots_GP[gpu_K, slot_K]
        other_K = rng.integers(0, gpus, size=BATCH)
        other_slot_K = rng.integers(0, slots, size=BATCH)
        into_K = self.slots_GP[other_K, other_slot_K]
        more_K = rng.random(BATCH) < 0.5
        fresh_K = ~self.hosts_EG[into_K, gpu_K]
        spare_K = self.hosts_EG.sum(axis=1)[out_K] > 1
        swappable_K = ~self.hosts_EG[out_K, other_K]
        as_swap_K = fresh_K & swappable_K & ~(more_K & spare_K)
        as_replica_K = fresh_K & spare_K & more_K
        keep = as_swap_K | as_replica_K
        return Exchanges(
            out_K[keep],
            into_K[keep],
            gpu_K[keep],
            slot_K[keep],
            np.where(as_swap_K, other_K, -1)[keep],
            np.where(as_swap_K, other_slot_K, -1)[keep],
        )

    def _busiest(self) -> int:
        rows_G: Floats = (self.total.rows * self.times.part_W[:, None]).sum(axis=0)
        active_G: Floats = (self.total.active * self.times.part_W[:, None]).sum(axis=0)
        seconds_G = self.times.step.hardware.expert.seconds(rows_G, active_G, expert=self.times.step.expert)
        return int(seconds_G.argmax())


def _added(one: Sums, other: Sums) -> Sums:
    return Sums(one.rows + other.rows, one.active + other.active, one.flow + other.flow, one.to_node + other.to_node)
