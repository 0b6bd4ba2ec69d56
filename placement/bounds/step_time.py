"""A lower bound on the predicted time of a MoE layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.copies import copies_bound
from placement.bounds.locality import local_gpu_bound, local_node_bound
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.hardware import Sends
from placement.problem import Problem
from placement.step_time import Step
from placement.tokens import Tokens
from placement.topology import Topology

MEAN_GPU = "mean GPU in every window and layer (Jensen), every chosen expert active once"
MEAN_GPU_AND_LOCALITY = f"{MEAN_GPU}, fewest rows away from home in every window"
MEAN_GPU_AND_TOKENS = f"{MEAN_GPU}, fewest copies of the recorded tokens or of rows away from home"

MOST_WINDOWS = 8
"""Windows for which the fewest rows away from home are worked out, each by itself."""


@dataclass(frozen=True)
class StepTimeBound:
    """No layout's MoE layer is predicted to take less, on average over layers and windows."""

    seconds: float
    relaxation: str


def step_time_bound(problem: Problem) -> StepTimeBound:
    """Bound the predicted time of a MoE layer from below.

    Relaxation: in every window and layer the slowest GPU is replaced by a mean one.

    Proof. Expert time is a convex, increasing function of rows and active experts, so the slowest GPU takes at least
    what one with the mean rows and mean active experts would. Mean rows do not depend on the layout. Every GPU's active
    experts are expected values over independent tokens, and a token that chooses e has it computed on one GPU, so over
    GPUs they add up to at least the chance that any token chooses e (union bound; with whole tokens, rounded down).
    The all-to-all of the slowest GPU takes at least the mean of fixed part, handling of the mean rows and the copies
    sent over one kind of link: NVLink on one node, else RDMA. Rows that leave their GPU (node) are at least those
    beyond :func:`local_gpu_bound` (:func:`local_node_bound`) of the window alone. Where a token goes once to each
    destination of S slots, the chance that any of its rows goes there is at least ``h(r) = 1 - (1 - r / S) ^ S`` for r
    expected rows (means), concave in r, and thus at least ``r h(k) / k`` with ``k = min(top-k, S)``, the most r can be.

    Where copies are counted on tokens (``problem.tokens`` and a kernel that sends a token once per GPU), see
    :func:`_fewest_sent_L`. A sample of tokens proves nothing about the rest, so copies count nothing then.

    Raises
    ------
    BadOption
        The problem has no step.
    """
    step = problem.step
    if step is None:
        raise BadOption("a bound on step time needs a step: hardware, phase and tokens per GPU.")
    demand = problem.demand
    layers = list(demand.moe_layers)
    all_W = demand.tokens_WLE[:, layers].sum(axis=(1, 2)).astype(np.float64)
    part_W = all_W / all_W.sum()
    counted = problem.counts_copies
    with_links = problem.dispatch is not Dispatch.EVEN and demand.windows <= MOST_WINDOWS and not counted
    seconds = 0.0
    for window in np.flatnonzero(all_W).tolist():
        away_L = _share_away_L(problem, window) if with_links else np.zeros(demand.layers)
        used = [layer for layer in layers if demand.tokens_WLE[window, layer].any()]
        by_layer = [_layer_s(problem, step, window, layer, away=float(away_L[layer])) for layer in used]
        seconds += float(part_W[window]) * sum(by_layer) / len(layers)
    if counted and problem.tokens is not None and problem.tokens.is_whole:
        sent_L = _fewest_sent_L(problem, problem.tokens.tokens, part_W)
        seconds += _copy_s(step, problem.topology) * step.tokens_per_gpu * sum(sent_L.values()) / len(layers)
        return StepTimeBound(seconds, MEAN_GPU_AND_TOKENS)
    return StepTimeBound(seconds, MEAN_GPU_AND_LOCALITY if with_links else MEAN_GPU)


def _copy_s(step: Step, topology: Topology) -> float:
    """Return what one copy more takes: over NVLink on one node, else over RDMA."""
    kernel = step.hardware.all_to_all(step.phase)
    seconds = []
    for copies in (0.0, 1.0):
        nvlink, rdma = (copies, 0.0) if topology.nodes == 1 else (0.0, copies)
        links = {"nvlink_copies": nvlink, "rdma_copies": rdma}
        seconds.append(float(kernel.seconds(rows=0.0, hidden=step.expert.hidden, **links)))
    return seconds[1] - seconds[0]


def _fewest_sent_L(problem: Problem, tokens: Tokens, part_W: npt.NDArray[np.float64]) -> dict[int, float]:
    """Return copies per token that every layer sends at least, its windows weighted by ``part_W``: to other GPUs on one
    node, else to other nodes.

    No layout sends fewer copies of a layer's T tokens than :func:`copies_bound`, all windows together. A window of T_w
    tokens counts with its part p_w, so every copy counts at least ``min over w of p_w / T_w``. And a copy carries no
    more rows than a token has experts, or its destination slots, so that rows away from home need as many copies.
    """
    topology, windows = problem.topology, len(part_W)
    on_one_node = topology.nodes == 1
    fewest = copies_bound(tokens, topology, problem.slots_per_gpu).layers if on_one_node else {}
    together = min(tokens.top_k, problem.slots_per_gpu * (1 if on_one_node else topology.gpus_per_node))
    away_WL = np.zeros((windows, tokens.layers))
    if windows <= MOST_WINDOWS:
        away_WL[part_W > 0] = [_share_away_L(problem, window) for window in np.flatnonzero(part_W).tolist()]
    sent_L = {}
    for layer in tokens.moe_layers:
        ids_TK = tokens.experts_LTK[layer] < tokens.experts
        used_T = ids_TK.any(axis=1)
        tokens_W = np.bincount(tokens.window_T[used_T], minlength=windows).astype(np.float64)
        rows_W = np.bincount(tokens.window_T, weights=ids_TK.sum(axis=1), minlength=windows)
        per_token_W = np.divide(part_W, tokens_W, out=np.zeros(windows), where=tokens_W > 0)
        by_rows = float((per_token_W * rows_W * away_WL[:, layer]).sum()) / together
        copies, _ = fewest.get(layer, (0.0, ""))
        sent_L[layer] = max(by_rows, copies * float(per_token_W[tokens_W > 0].min()))
    return sent_L


def _share_away_L(problem: Problem, window: int) -> npt.NDArray[np.float64]:
    """Return the least share of a window's rows that must leave their GPU, or node where there are several; [L]."""
    alone = problem.demand.pick_windows([window])
    bound = local_gpu_bound if problem.topology.nodes == 1 else local_node_bound
    most_L = bound(alone, problem.topology, problem.slots_per_gpu).tokens_L
    tokens_L = alone.tokens_WLE[0].sum(axis=1).astype(np.float64)
    share_L = np.divide(most_L, tokens_L, out=np.ones_like(tokens_L), where=tokens_L > 0)
    away_L: npt.NDArray[np.float64] = np.maximum(0.0, 1.0 - share_L)
    return away_L


def _layer_s(problem: Problem, step: Step, window: int, layer: int, *, away: float) -> float:
    rows = float(step.tokens_per_gpu * step.top_k)
    active = _active_experts(problem.demand, step, window, layer, gpus=problem.topology.gpus) / problem.topology.gpus
    seconds = float(step.hardware.expert.seconds(rows, active, expert=step.expert))
    if problem.dispatch is Dispatch.EVEN:
        return seconds
    kernel = step.hardware.all_to_all(step.phase)
    copies, one_node = rows * away, problem.topology.nodes == 1
    if kernel.sends is Sends.PER_GPU:
        slots = problem.slots_per_gpu * (1 if one_node else problem.topology.gpus_per_node)
        together = min(step.top_k, slots)
        copies *= (1 - (1 - together / slots) ** slots) / together
    nvlink, rdma = (copies, 0.0) if one_node else (0.0, copies)
    return seconds + float(kernel.seconds(rows=rows, nvlink_copies=nvlink, rdma_copies=rdma, hidden=step.expert.hidden))


def _active_experts(demand: Demand, step: Step, window: int, layer: int, *, gpus: int) -> float:
    """Return the expected number of experts that any token of a step chooses."""
    tokens_SE = demand.tokens_WLSE[window, layer].astype(np.float64)
    routed_S = tokens_SE.sum(axis=1)
    share_SE = np.divide(tokens_SE, routed_S[:, None], out=np.zeros_like(tokens_SE), where=routed_S[:, None] > 0)
    chance_SE = np.minimum(share_SE * step.top_k, 1.0 - 1e-15)
    sources = gpus if demand.sources == "uniform" else 1
    whole_S = np.floor(routed_S / routed_S.sum() * step.tokens_per_gpu * gpus / sources) * sources
    return float(-np.expm1((whole_S[:, None] * np.log1p(-chance_SE)).sum(axis=0)).sum())
