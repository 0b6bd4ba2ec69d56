"""What is proven about a problem before and while it is solved, gathered into one bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

from placement.bounds import (
    LocalityBound,
    bound_imbalance,
    bound_local_under_cap,
    imbalance_bound,
    local_gpu_bound,
    local_node_bound,
)
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Problem
from placement.solution import Bound


@dataclass(frozen=True, eq=False)
class Proofs:
    """Bounds so far; only ever tightened.

    Attributes
    ----------
    bound : Bound
    locality : LocalityBound or None
        Hosts that reach the bound on the share asked for; None where nothing is local.
    scope : LocalScope
    """

    bound: Bound
    locality: LocalityBound | None
    scope: LocalScope

    @property
    def local(self) -> float:
        """Upper bound on the share asked for."""
        share = self.bound.local_node if self.scope is LocalScope.NODE else self.bound.local_gpu
        return 0.0 if share is None else share

    @property
    def imbalance(self) -> float:
        return 1.0 if self.bound.imbalance is None else self.bound.imbalance

    def with_local(self, share: float, relaxation: str) -> Proofs:
        """Take an upper bound on the share asked for, if it is tighter."""
        if self.locality is None or not share < self.local:
            return self
        name = "local_node" if self.scope is LocalScope.NODE else "local_gpu"
        relaxations = {**self.bound.relaxation, name: relaxation}
        if self.scope is LocalScope.NODE:
            return replace(self, bound=replace(self.bound, local_node=share, relaxation=relaxations))
        return replace(self, bound=replace(self.bound, local_gpu=share, relaxation=relaxations))

    def with_imbalance(self, imbalance: float, relaxation: str) -> Proofs:
        """Take a lower bound on the worst window, if it is tighter."""
        if not imbalance > self.imbalance:
            return self
        relaxations = {**self.bound.relaxation, "imbalance": relaxation}
        return replace(self, bound=replace(self.bound, imbalance=imbalance, relaxation=relaxations))


def first_proofs(problem: Problem) -> Proofs:
    """Return the bounds that need no search: locality by counts or flow, imbalance by counting."""
    demand, topology, slots = problem.demand, problem.topology, problem.slots_per_gpu
    imbalance = imbalance_bound(demand, topology, slots, problem.dispatch)
    relaxation = {"imbalance": imbalance.relaxation}
    if problem.dispatch is Dispatch.EVEN:
        return Proofs(Bound(None, None, imbalance.imbalance, relaxation), None, problem.local_scope)
    gpu = local_gpu_bound(demand, topology, slots)
    node = local_node_bound(demand, topology, slots)
    relaxation |= {"local_gpu": gpu.relaxation, "local_node": node.relaxation}
    bound = Bound(gpu.share, node.share, imbalance.imbalance, relaxation)
    return Proofs(bound, node if problem.local_scope is LocalScope.NODE else gpu, problem.local_scope)


def with_capped_local(proofs: Proofs, problem: Problem, *, cap: float, effort_s: float) -> Proofs:
    """Tighten the locality bound by a relaxation that sees the cap, where one exists: over host sets, or layers."""
    found = bound_local_under_cap(problem, max_imbalance=cap, effort_s=effort_s)
    return proofs if found is None else proofs.with_local(found.value, found.relaxation)


def with_window_imbalance(proofs: Proofs, problem: Problem, *, effort_s: float) -> Proofs:
    """Tighten the imbalance bound by a relaxation that sees all windows: over host sets, layers, or GPU contents."""
    found = bound_imbalance(problem, effort_s=effort_s)
    return proofs if found is None else proofs.with_imbalance(found.value, found.relaxation)
