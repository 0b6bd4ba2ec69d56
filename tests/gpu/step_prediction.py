"""How long a prefill step takes under a layout: moeplan's model with a profile measured on the machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placement.dispatch import Dispatch
from placement.hardware import HardwareProfile, Sends
from placement.layout import Layout
from placement.model_shape import ExpertShape
from placement.score import count_copies, loads_WLG, moe_layer_time
from placement.step_time import Step
from placement.topology import flat_or_nodes
from profiler.hardware.fitting import LinkSample, fit_link
from tests.gpu.layouts import demand_of, tokens_of
from tests.gpu.traffic import Routed

SMALLEST_FIXED_S = 1e-6
NOTHING_PER_S = 1e18
"""So fast that it takes no time."""


@dataclass(frozen=True)
class StepShape:
    """What a step is made of.

    Attributes
    ----------
    expert : ExpertShape
    top_k, experts, gpus : int
    tokens_per_gpu : int
        Home tokens of each GPU in a full step.
    dispatch : Dispatch
    """

    expert: ExpertShape
    top_k: int
    experts: int
    gpus: int
    tokens_per_gpu: int
    dispatch: Dispatch


@dataclass(frozen=True)
class StepLoad:
    """What a layout makes of single steps, a mean over steps and layers.

    Attributes
    ----------
    rows : float
        Pairs of token and expert on the GPU that has most.
    copies : float
        Tokens that the busiest GPU sends or receives, whichever is more; 0 where nothing is sent.
    """

    rows: float
    copies: float


@dataclass(frozen=True)
class PredictedStep:
    """Predicted milliseconds of all MoE layers of one step.

    Attributes
    ----------
    moe_ms : float
        Copies counted on single tokens.
    experts_ms : float
        Their experts' part.
    moe_from_counts_ms : float
        As ``moeplan plan`` and ``compare`` print it: copies expected from counts, as if a token chose its experts
        independently of each other.
    """

    moe_ms: float
    experts_ms: float
    moe_from_counts_ms: float


def step_loads(layouts: Mapping[str, Layout], routed: Routed, shape: StepShape) -> dict[str, StepLoad]:
    """Return what steps of full size ask of the busiest GPU."""
    rows, copies = _rows_and_copies(layouts, routed, shape)
    return {
        name: StepLoad(float(rows[name].max(axis=2).mean()), float(copies[name].max(axis=2).mean())) for name in layouts
    }


def predict_steps(
    layouts: Mapping[str, Layout], routed: Routed, shape: StepShape, profile: HardwareProfile
) -> dict[str, PredictedStep]:
    """Predict the MoE layers of a step for every layout from tokens that were recorded under another one."""
    rows, copies = _rows_and_copies(layouts, routed, shape)
    demand = demand_of(routed, experts=shape.experts, gpus=shape.gpus, tokens_per_step=shape.tokens_per_gpu)
    topology, _notices = flat_or_nodes(gpus=shape.gpus, nodes=1)
    step = Step(profile, "prefill", shape.expert, shape.top_k, shape.tokens_per_gpu)
    found = {}
    for name, layout in layouts.items():
        active_LG = np.array(
            [[len(set(slots.tolist())) for slots in np.split(row, layout.gpus)] for row in layout.slot_to_expert_LP]
        )
        expert_WLG = profile.expert.seconds(
            rows[name], np.broadcast_to(active_LG, rows[name].shape), expert=shape.expert
        )
        experts_ms = 1e3 * layout.layers * float(expert_WLG.max(axis=2).mean())
        sending_ms = 0.0
        if shape.dispatch is not Dispatch.EVEN:
            seconds_WLG = profile.prefill.seconds(
                rows=rows[name], nvlink_copies=copies[name], rdma_copies=0.0, hidden=shape.expert.hidden
            )
            sending_ms = 1e3 * layout.layers * float(seconds_WLG.max(axis=2).mean())
        by_counts = moe_layer_time(layout, demand, topology, dispatch=shape.dispatch, step=step)
        found[name] = PredictedStep(
            moe_ms=experts_ms + sending_ms,
            experts_ms=experts_ms,
            moe_from_counts_ms=1e3 * layout.layers * by_counts.moe_layer_s,
        )
    return found


def _rows_and_copies(
    layouts: Mapping[str, Layout], routed: Routed, shape: StepShape
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return rows and copies of every GPU by step and layer, [W, L, G]; copies are the larger of sent and received."""
    topology, _notices = flat_or_nodes(gpus=shape.gpus, nodes=1)
    tokens = tokens_of(routed, experts=shape.experts, tokens_per_step=shape.tokens_per_gpu)
    demand = demand_of(routed, experts=shape.experts, gpus=shape.gpus, tokens_per_step=shape.tokens_per_gpu)
    rows = {name: loads_WLG(layout, demand, topology, dispatch=shape.dispatch) for name, layout in layouts.items()}
    if shape.dispatch is Dispatch.EVEN:
        return rows, {name: np.zeros_like(rows[name]) for name in layouts}
    counted = count_copies(layouts, [tokens], topology, dispatch=shape.dispatch, windows=demand.windows)
    return rows, {name: np.maximum(each.sent_WLG, each.received_WLG) for name, each in counted.items()}


@dataclass(frozen=True)
class CalibrationPoint:
    """One layout's load and what its steps took, per layer."""

    load: StepLoad
    experts_s: float
    all_to_all_s: float


def fit_profile(
    points: Sequence[CalibrationPoint], shape: StepShape, base: HardwareProfile, *, name: str
) -> HardwareProfile:
    """Fit expert time to rows and all-to-all time to copies, as straight lines in relative error.

    Reading weights and its overlap with arithmetic stay as in ``base``: in steps of thousands of tokens they do not
    show. Where time does not grow with rows or copies, it is taken as constant.
    """
    fixed_s, rows_per_s = _line([(point.load.rows, point.experts_s) for point in points])
    source = f"fitted on {len(points)} layouts of their own, measured in the engine before the others"
    expert = replace(
        base.expert,
        fixed_s=fixed_s,
        flops_per_s={arithmetic: rows_per_s * shape.expert.flops_per_row for arithmetic in base.expert.flops_per_s},
    )
    sources = {**base.sources, "expert": source}
    prefill = base.prefill
    if shape.dispatch is not Dispatch.EVEN:
        both_ways_bytes = shape.expert.hidden * 4.0
        link_fixed_s, bytes_per_s = _line(
            [(point.load.copies * both_ways_bytes, point.all_to_all_s) for point in points]
        )
        prefill = replace(
            base.prefill,
            sends=Sends.PER_GPU,
            fixed_s=link_fixed_s,
            nvlink_bytes_per_s=bytes_per_s,
            dispatch_bytes_per_value=2.0,
            combine_bytes_per_value=2.0,
            handled_bytes_per_s=None,
        )
        sources["prefill"] = source
        sources.pop("prefill.handled_bytes_per_s", None)
    return replace(base, name=name, expert=expert, prefill=prefill, sources=sources)


def _line(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit seconds to units: a fixed part and units per second, both positive."""
    constant = statistics.median(seconds for _units, seconds in samples), NOTHING_PER_S
    if len({units for units, _seconds in samples}) < 2:
        return constant
    line = fit_link([LinkSample(0.0, units, seconds) for units, seconds in samples])
    if line.sent_bytes_per_s <= 0 or not math.isfinite(line.sent_bytes_per_s):
        return constant
    if line.fixed_s < SMALLEST_FIXED_S:
        through = fit_link([LinkSample(0.0, *sample) for sample in samples], fixed_s=SMALLEST_FIXED_S)
        return SMALLEST_FIXED_S, through.sent_bytes_per_s
    return line.fixed_s, line.sent_bytes_per_s
