"""Plans to test files and reports with: real figures of the ruler on layouts made by a few plain rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.diff import diff
from placement.dispatch import Dispatch
from placement.layout import Layout, layout_from_hosts
from placement.notice import Notice
from placement.plan import Plan
from placement.plan_header import PlanInput, PlannedModel, PlanOptions
from placement.plan_metrics import Moves, PlanMetrics
from placement.problem import LocalScope, Objective
from placement.score import loads_WLG, score
from placement.solution import Bound, Status
from placement.topology import Topology


@dataclass(frozen=True)
class Sample:
    """What a sample plan is made from; the defaults give six layers of 32 experts on four GPUs."""

    demand: Demand
    topology: Topology
    slots_per_gpu: int
    model_name: str = "tiny-moe"
    top_k: int | None = 4
    objective: Objective = Objective.LOCALITY
    local_scope: LocalScope = LocalScope.GPU
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC
    holdout: Demand | None = None
    expert_bytes: int | None = 147_456
    notices: tuple[Notice, ...] = ()


def skewed_demand(*, windows: int = 2, layers: int = 6, experts: int = 32, seed: int = 0) -> Demand:
    """Counts with a few hot experts per layer; layer 0 is dense (all zero)."""
    rng = np.random.default_rng(seed)
    weights_LE = rng.gamma(0.8, size=(layers, experts)) + 0.05
    tokens_WLE = rng.poisson(2000 * weights_LE[None] * rng.uniform(0.5, 1.5, size=(windows, layers, experts)))
    tokens_WLE[:, 0] = 0
    return Demand.uniform(tokens_WLE, [f"window {index}" for index in range(windows)])


def small_sample() -> Sample:
    return Sample(skewed_demand(), Topology(4), slots_per_gpu=12)


def make_plan(sample: Sample) -> Plan:
    """Score hand-made layouts: hottest experts everywhere, the rest packed; contiguous before; shuffled as random."""
    demand, topology = sample.demand, sample.topology
    heat_LE = demand.tokens_WLE.sum(axis=0)
    ours = _hottest_everywhere(heat_LE, gpus=topology.gpus, slots_per_gpu=sample.slots_per_gpu)
    trivial = _contiguous(heat_LE.shape, gpus=topology.gpus, slots_per_gpu=sample.slots_per_gpu)
    rng = np.random.default_rng(1)
    shuffled = Layout(rng.permuted(trivial.slot_to_expert_LP, axis=1), gpus=topology.gpus, experts=demand.experts)
    even = _hottest_everywhere(np.ones_like(heat_LE), gpus=topology.gpus, slots_per_gpu=sample.slots_per_gpu)
    moves = diff(trivial, ours, expert_bytes=sample.expert_bytes, moe_layers=demand.moe_layers)
    metrics = {
        name: _judged(layout, trivial, sample)
        for name, layout in {
            "ours": ours,
            "trivial": trivial,
            "random": shuffled,
            "eplb": even,
            "hot_replication": ours,
        }.items()
    }
    return Plan(
        moeplan_version="0.1.0",
        model=PlannedModel(sample.model_name, demand.layers, demand.experts, sample.top_k, demand.moe_layers),
        topology=topology,
        inputs=(PlanInput("recording.npz", "ab" * 32),),
        options=PlanOptions(
            objective=sample.objective,
            local_scope=sample.local_scope,
            dispatch=sample.dispatch,
            max_imbalance=1.05,
            max_imbalance_used=1.05,
            window_by="file",
            slots_from="slots-per-gpu",
            seed=0,
            holdout_share=0.0 if sample.holdout is None else 0.25,
        ),
        status=Status.FEASIBLE,
        layout=ours,
        metrics=metrics.pop("ours"),
        bound=_bound(metrics["hot_replication"], sample),
        baselines=metrics,
        moves=Moves("trivial", moves.moved_slots, moves.moved_bytes, moves.moved_L, moves.received_G),
        heat_LE=heat_LE,
        load_before_LG=loads_WLG(trivial, demand, topology, dispatch=sample.dispatch).sum(axis=0),
        load_after_LG=loads_WLG(ours, demand, topology, dispatch=sample.dispatch).sum(axis=0),
        notices=sample.notices,
        solve_seconds=1.25,
    )


def _judged(layout: Layout, before: Layout, sample: Sample) -> PlanMetrics:
    figures = score(layout, sample.demand, sample.topology, dispatch=sample.dispatch)
    holdout = sample.holdout and score(layout, sample.holdout, sample.topology, dispatch=sample.dispatch)
    moved = diff(before, layout, moe_layers=sample.demand.moe_layers).moved_slots
    return PlanMetrics.of(figures, moved_slots=moved, holdout=holdout)


def _bound(best: PlanMetrics, sample: Sample) -> Bound:
    """A figure above the best layout at hand; a sample proves nothing, it only has to look like a bound."""
    if best.local_gpu is None:
        return Bound(None, None, 1.0, {"imbalance": "mean load"})
    local_gpu = min(1.0, best.local_gpu * 1.01)
    return Bound(local_gpu, 1.0, 1.0, {"local_gpu": "replica counts", "local_node": "all", "imbalance": "mean load"})


def _contiguous(shape: tuple[int, int], *, gpus: int, slots_per_gpu: int) -> Layout:
    layers, experts = shape
    row = np.arange(gpus * slots_per_gpu) % experts
    return Layout(np.tile(row, (layers, 1)).astype(np.int32), gpus=gpus, experts=experts)


def _hottest_everywhere(heat_LE: npt.NDArray[np.int64], *, gpus: int, slots_per_gpu: int) -> Layout:
    experts = heat_LE.shape[1]
    everywhere, partly = divmod(gpus * slots_per_gpu - experts, max(gpus - 1, 1))
    hosts = []
    for heat_E in heat_LE:
        order = np.argsort(-heat_E, kind="stable").tolist()
        by_gpu: list[list[int]] = [order[:everywhere] for _ in range(gpus)]
        load_G = [0.0] * gpus
        for rank, expert in enumerate(order[everywhere:]):
            copies = partly + 1 if rank == 0 else 1
            free = [gpu for gpu in range(gpus) if len(by_gpu[gpu]) < slots_per_gpu]
            for gpu in sorted(free, key=lambda gpu: (load_G[gpu], len(by_gpu[gpu])))[:copies]:
                by_gpu[gpu].append(expert)
                load_G[gpu] += float(heat_E[expert]) / copies
        hosts.append(by_gpu)
    return layout_from_hosts(hosts, experts=experts)
