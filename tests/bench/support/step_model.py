"""The profile's formulas put together to a whole step of the measured engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from placement.hardware import HardwareProfile
from profiler.hardware import read_hardware
from profiler.hardware.fitting import LinkSample, fit_link
from tests.bench.support.measured_on_h200 import GPUS, LAYERS, LAYOUTS, TOKENS_PER_GPU, TOP_K, V2_LITE, MeasuredLayout

BOTH_WAYS_BYTES = 4 * V2_LITE.hidden
"""A token in bf16 to its experts and back."""


@dataclass(frozen=True)
class StepModel:
    """A profile, and what a step takes outside its MoE layers."""

    profile: HardwareProfile
    rest_s: float

    def all_to_all_s(self, layout: MeasuredLayout) -> float:
        seconds = self.profile.prefill.seconds(
            rows=_rows(layout), nvlink_copies=_copies(layout), rdma_copies=0.0, hidden=V2_LITE.hidden
        )
        return float(seconds)

    def moe_layers_s(self, layout: MeasuredLayout) -> float:
        experts_s = float(self.profile.expert.seconds(_rows(layout), layout.slots_per_gpu, expert=V2_LITE))
        return LAYERS * (experts_s + self.all_to_all_s(layout))

    def step_s(self, layout: MeasuredLayout) -> float:
        return self.rest_s + self.moe_layers_s(layout)


def shipped_step_model() -> StepModel:
    """Return the H200 profile as it is; only the rest of the step is fitted."""
    return _with_rest(StepModel(read_hardware("h200"), 0.0), LAYOUTS)


def fit_step_model(layouts: Sequence[MeasuredLayout]) -> StepModel:
    """Fit the rates of the all-to-all and the rest of the step on some layouts."""
    shipped = read_hardware("h200")
    samples = [
        LinkSample(_rows(each) * BOTH_WAYS_BYTES, _copies(each) * BOTH_WAYS_BYTES, each.all_to_all_s)
        for each in layouts
        if each.all_to_all_s is not None
    ]
    figures = fit_link(samples, fixed_s=shipped.prefill.fixed_s)
    prefill = replace(
        shipped.prefill,
        handled_bytes_per_s=figures.handled_bytes_per_s,
        nvlink_bytes_per_s=figures.sent_bytes_per_s,
    )
    return _with_rest(StepModel(replace(shipped, prefill=prefill), 0.0), layouts)


def _with_rest(model: StepModel, layouts: Sequence[MeasuredLayout]) -> StepModel:
    return replace(model, rest_s=mean(each.step_s - model.moe_layers_s(each) for each in layouts))


def _rows(layout: MeasuredLayout) -> float:
    return layout.busiest_load * TOKENS_PER_GPU * TOP_K


def _copies(layout: MeasuredLayout) -> float:
    """Copies of the GPU with most to send or receive; all four send as many."""
    received = min(layout.received_by_busiest, GPUS - 1)
    return max(1.0, received) * layout.copies_per_token * TOKENS_PER_GPU
