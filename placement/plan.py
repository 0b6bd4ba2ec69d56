"""A plan: a layout with everything that was asked, found and proven about it.

A plan is what travels: it is written to ``PLAN.json``, attached to tickets, drawn as a report, exported and pushed.
So it holds all that these need and refers to nothing outside. The same input, options and seed give the same plan,
byte for byte: it holds no clock time and no machine name. The one value that differs from run to run,
``solve_seconds``, is printed (:meth:`Plan.summary`) and not stored (:meth:`Plan.to_dict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import BadPlan
from placement.layout import Layout
from placement.notice import Notice
from placement.pareto import MovePoint
from placement.plan_header import PlanInput, PlannedModel, PlanOptions
from placement.plan_metrics import Moves, PlanMetrics, capacities_of, require_possible
from placement.problem import LocalScope, Objective
from placement.solution import Bound, Status
from placement.topology import Topology

FORMAT = "moeplan-plan"
FORMAT_VERSION = 1

BOUND_TOLERANCE = 1e-6
"""How far rounding in a solver may put a figure past its bound."""

BOUNDED = ("local_gpu", "local_node", "imbalance", "gpus_per_token", "moe_layer_s")
"""Figures that a bound may be given for."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A layout, how it was asked for and what it is worth.

    Attributes
    ----------
    moeplan_version : str
    model : PlannedModel
    topology : Topology
    inputs : tuple of PlanInput
    options : PlanOptions
    status : Status
    layout : Layout
        All decoder layers of the model.
    metrics : PlanMetrics
    bound : Bound
    baselines : mapping
        Name (trivial, random, eplb, hot_replication, and current where given) to figures, in the order to be shown.
    moves : Moves
    heat_LE : ndarray
        int64 [L, E], read-only: routed tokens, all windows together.
    load_before_LG, load_after_LG : ndarray
        int64 [L, G], read-only: tokens each GPU computes under the layout before and under the plan's, all windows
        together; expected values of the dispatch model, rounded to whole tokens.
    notices : tuple of Notice
    solve_seconds : float or None
        None in a plan that was read back.
    pareto : tuple of MovePoint
        Plans that move less and what they are worth, where asked for; printed, not stored.

    Raises
    ------
    BadPlan
        Naming the two parts that contradict each other.
    """

    moeplan_version: str
    model: PlannedModel
    topology: Topology
    inputs: tuple[PlanInput, ...]
    options: PlanOptions
    status: Status
    layout: Layout
    metrics: PlanMetrics
    bound: Bound
    baselines: Mapping[str, PlanMetrics]
    moves: Moves
    heat_LE: npt.NDArray[np.int64]
    load_before_LG: npt.NDArray[np.int64]
    load_after_LG: npt.NDArray[np.int64]
    notices: tuple[Notice, ...] = ()
    solve_seconds: float | None = None
    pareto: tuple[MovePoint, ...] = ()

    def __post_init__(self) -> None:
        for name in ("heat_LE", "load_before_LG", "load_after_LG"):
            object.__setattr__(self, name, _whole_tokens(getattr(self, name), name=name))
        self._check_shapes()
        self._check_sums()
        for name, metrics in {"metrics": self.metrics, **self.baselines}.items():
            require_possible(metrics, name=name)
            if capacities_of(metrics) != capacities_of(self.metrics):
                raise BadPlan(
                    f"{name} was judged at the capacities {capacities_of(metrics)}, the plan at "
                    f"{capacities_of(self.metrics)}; all layouts are judged at the same."
                )
        self._check_bound()

    def _check_shapes(self) -> None:
        layers, experts, gpus = self.model.layers, self.model.experts, self.topology.gpus
        found = (self.layout.layers, self.layout.experts, self.layout.gpus)
        if found != (layers, experts, gpus):
            raise BadPlan(
                "the layout has {} layers, {} experts and {} GPUs; ".format(*found)
                + f"the header says {layers}, {experts} and {gpus}."
            )
        shapes = {"heat_LE": (layers, experts), "load_before_LG": (layers, gpus), "load_after_LG": (layers, gpus)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise BadPlan(f"{name} has shape {getattr(self, name).shape}; it must be {shape}.")
        lengths = {"by_layer": layers, "received_by_gpu": gpus}
        for name, length in lengths.items():
            if len(getattr(self.moves, name)) != length:
                raise BadPlan(f"moves.{name} has {len(getattr(self.moves, name))} entries; it must have {length}.")
        moe_layers = self.model.moe_layers
        if list(moe_layers) != sorted(set(moe_layers)) or not set(moe_layers) <= set(range(layers)):
            raise BadPlan(f"model.moe_layers is {list(moe_layers)}; it must be ascending layers below {layers}.")

    def _check_sums(self) -> None:
        """Refuse loads of other traffic than the heat's: dispatch spreads a layer's tokens, it never loses any."""
        tokens_L = self.heat_LE.sum(axis=1)
        busy = set(np.flatnonzero(tokens_L).tolist())
        if not busy or not busy <= set(self.model.moe_layers):
            raise BadPlan(f"layers {sorted(busy)} have traffic, layers {list(self.model.moe_layers)} have experts.")
        for name in ("load_before_LG", "load_after_LG"):
            off_L = np.abs(getattr(self, name).sum(axis=1) - tokens_L)
            layer = int(off_L.argmax())
            if off_L[layer] > self.topology.gpus / 2 + 1e-9 * float(tokens_L[layer]):
                total = int(getattr(self, name)[layer].sum())
                raise BadPlan(f"{name}, layer {layer} adds up to {total} tokens, heat_LE to {int(tokens_L[layer])}.")
        if self.metrics.moved_slots != self.moves.moved_slots:
            raise BadPlan(f"metrics say {self.metrics.moved_slots} moved slots, moves {self.moves.moved_slots}.")

    def _check_bound(self) -> None:
        """Refuse a bound without the relaxation it comes from, and one that the plan itself passes."""
        present = {name for name in BOUNDED if getattr(self.bound, name) is not None}
        if present != set(self.bound.relaxation):
            raise BadPlan(f"bounds {sorted(present)} are given, but relaxations of {sorted(self.bound.relaxation)}.")
        for name in ("local_gpu", "local_node"):
            share, bound = getattr(self.metrics, name), getattr(self.bound, name)
            if share is not None and bound is not None and share > bound + BOUND_TOLERANCE:
                raise BadPlan(f"metrics.{name} is {share}, above its proven bound {bound}.")
        imbalance, bound = self.metrics.worst_window.imbalance, self.bound.imbalance
        if bound is not None and imbalance < bound - BOUND_TOLERANCE:
            raise BadPlan(f"the worst window's imbalance is {imbalance}, below its proven bound {bound}.")
        copies, bound, basis = self.metrics.gpus_per_token, self.bound.gpus_per_token, self.metrics.token_basis
        sampled = basis is not None and basis.tokens < basis.recorded_tokens
        if copies is not None and bound is not None and not sampled and copies < bound - BOUND_TOLERANCE:
            raise BadPlan(f"metrics.gpus_per_token is {copies}, below its proven bound {bound}.")
        moe_layer, bound = self.metrics.moe_layer, self.bound.moe_layer_s
        # Proven for tokens with top-k experts each; a trace may hold tokens with fewer.
        by_counts = moe_layer is not None and moe_layer.basis == "counts"
        if moe_layer and bound and by_counts and moe_layer.moe_layer_s < bound * (1 - BOUND_TOLERANCE):
            raise BadPlan(f"a MoE layer takes {moe_layer.moe_layer_s} s, below its proven bound {bound}.")

    @property
    def slots_per_gpu(self) -> int:
        return self.layout.slots_per_gpu

    @property
    def window_names(self) -> tuple[str, ...]:
        """Names of the windows the plan was made for."""
        return tuple(window.name for window in self.metrics.windows)

    @property
    def local(self) -> float | None:
        """Local share in the scope asked for."""
        return self.metrics.local_node if self.options.local_scope is LocalScope.NODE else self.metrics.local_gpu

    @property
    def local_bound(self) -> float | None:
        """Proven upper bound on :attr:`local`."""
        return self.bound.local_node if self.options.local_scope is LocalScope.NODE else self.bound.local_gpu

    @property
    def gap(self) -> float | None:
        """Relative distance of the objective's own figure from its bound, >= 0; None without a bound.

        ``1 - local / bound`` for locality, ``worst window's imbalance / bound - 1`` for balance, ``copies per token /
        bound - 1`` for traffic (absent where copies were counted for a sample), and the same with predicted times for
        step time.
        """
        if self.options.objective is Objective.TRAFFIC and self.metrics.token_basis is not None:
            return self._gap_of_copies()
        if self.options.objective is Objective.STEP_TIME:
            bound, time = self.bound.moe_layer_s, self.metrics.moe_layer
            return None if not bound or time is None else max(0.0, time.moe_layer_s / bound - 1)
        if self.options.objective is Objective.BALANCE:
            bound = self.bound.imbalance
            return None if not bound else max(0.0, self.metrics.worst_window.imbalance / bound - 1)
        if self.local is None or not self.local_bound:
            return None
        return max(0.0, 1 - self.local / self.local_bound)

    def _gap_of_copies(self) -> float | None:
        copies, bound, basis = self.metrics.gpus_per_token, self.bound.gpus_per_token, self.metrics.token_basis
        if copies is None or not bound or basis is None or basis.tokens < basis.recorded_tokens:
            return None
        return max(0.0, copies / bound - 1)

    def summary(self) -> dict[str, Any]:
        """Return what ``moeplan plan --json`` prints."""
        pareto = {"pareto": [point.to_dict() for point in self.pareto]} if self.pareto else {}
        return {**self._summary(), "solve_seconds": self.solve_seconds, **pareto}

    def to_dict(self) -> dict[str, Any]:
        """Return what ``PLAN.json`` holds: header, summary, what the report draws, and the layout."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "moeplan_version": self.moeplan_version,
            "model": asdict(self.model),
            "topology": {"gpus": self.topology.gpus, "nodes": self.topology.nodes},
            "inputs": [asdict(each) for each in self.inputs],
            "options": asdict(self.options),
            **self._summary(),
            "heat": self.heat_LE.tolist(),
            "load_before": self.load_before_LG.tolist(),
            "load_after": self.load_after_LG.tolist(),
            "physical_to_logical_map": self.layout.slot_to_expert_LP.tolist(),
        }

    def _summary(self) -> dict[str, Any]:
        return {
            "status": str(self.status),
            "slots_per_gpu": self.slots_per_gpu,
            "layout_hash": self.layout.hash,
            "sources": self.metrics.sources,
            "metrics": self.metrics.to_dict(),
            "bound": self.bound.to_dict(),
            "gap": self.gap,
            "baselines": {name: metrics.to_dict() for name, metrics in self.baselines.items()},
            "moves": asdict(self.moves),
            "warnings": [notice.to_dict() for notice in self.notices],
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.layout)


def _whole_tokens(tokens: npt.NDArray[np.generic], *, name: str) -> npt.NDArray[np.int64]:
    values = np.asarray(tokens)
    if values.ndim != 2 or values.dtype.kind not in "iuf":
        raise BadPlan(f"{name} has shape {values.shape} of {values.dtype}; it must be a table of numbers.")
    if not np.isfinite(values).all() or (values < 0).any() or (values > 2.0**62).any():
        raise BadPlan(f"{name} holds a value that is no count of tokens (0 to 2^62).")
    frozen = np.rint(values).astype(np.int64)
    frozen.flags.writeable = False
    return frozen
