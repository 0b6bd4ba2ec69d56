"""Predicted times beside measured ones: ``python -m tests.bench.step_time``.

Two tables. Both compare the figures of the H200 profile that moeplan ships with what they were fitted on, and, since
that proves little, with predictions for what was left out of the fit: one measured expert shape at a time, one
measured layout at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import median

from placement.hardware import ExpertTimes
from profiler.hardware import read_hardware
from profiler.hardware.fitting import ExpertSample, fit_expert_times
from tests.bench.support.measured_on_h200 import EXPERT_SAMPLES, LAYOUTS, MeasuredLayout
from tests.bench.support.step_model import StepModel, fit_step_model, shipped_step_model
from tests.bench.support.tables import print_head, print_rows

EXPERT_COLUMNS = (
    "predicted for",
    "fitted on",
    "samples",
    "median %",
    "worst %",
    "fixed us",
    "TFLOPS",
    "TB/s",
)
LAYOUT_COLUMNS = (
    "layout",
    "a2a ms per layer",
    "predicted",
    "step ms",
    "predicted",
    "error %",
    "left out of the fit",
    "error %",
)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print_head(
        "Predicted times beside times measured on H200s",
        protocol=(
            "experts: medians of grouped bf16 products on one H200, three shapes; four fitted figures",
            "layouts: SGLang 0.5.16 with DeepEP on 4 H200s, prefill of 8192 tokens per GPU, 4 MoE layers of 64 experts "
            "of 2048 x 1408, top-8; fitted: rates of handling and sending on five all-to-all times, and the part of a "
            "step outside the MoE layers on the six step times; ranges are taken at their middle",
        ),
    )
    print_rows(EXPERT_COLUMNS, _expert_rows(), title="time of the experts of one layer on one GPU")
    print_rows(LAYOUT_COLUMNS, _layout_rows(), title="all-to-all and step by layout")
    print(_order(LAYOUTS, shipped_step_model()))


def _expert_rows() -> Iterator[tuple[object, ...]]:
    shipped = read_hardware("h200").expert
    yield _errors("all", "shipped profile (all)", shipped, EXPERT_SAMPLES)
    yield _errors("all", "all, fitted now", fit_expert_times(EXPERT_SAMPLES), EXPERT_SAMPLES)
    for expert in dict.fromkeys(each.expert for each in EXPERT_SAMPLES):
        shape = f"{expert.hidden} x {expert.width}"
        inside = [each for each in EXPERT_SAMPLES if each.expert != expert]
        outside = [each for each in EXPERT_SAMPLES if each.expert == expert]
        yield _errors(shape, "the other two shapes", fit_expert_times(inside), outside)


def _errors(name: str, fitted_on: str, times: ExpertTimes, samples: Sequence[ExpertSample]) -> tuple[object, ...]:
    errors = [abs(expert_error(times, each)) for each in samples]
    return (
        name,
        fitted_on,
        len(samples),
        f"{100 * median(errors):.1f}",
        f"{100 * max(errors):.1f}",
        f"{times.fixed_s * 1e6:.0f}",
        f"{times.flops_per_s['bf16'] / 1e12:.0f}",
        f"{times.weight_bytes_per_s / 1e12:.2f}",
    )


def expert_error(times: ExpertTimes, sample: ExpertSample) -> float:
    """Return predicted over measured, minus 1."""
    return float(times.seconds(sample.rows, sample.active_experts, expert=sample.expert)) / sample.seconds - 1


def _layout_rows() -> Iterator[tuple[object, ...]]:
    model = shipped_step_model()
    for layout in LAYOUTS:
        without = fit_step_model([each for each in LAYOUTS if each is not layout])
        step_s, left_out_s = model.step_s(layout), without.step_s(layout)
        yield (
            layout.name,
            "-" if layout.all_to_all_s is None else f"{layout.all_to_all_s * 1e3:.2f}",
            f"{model.all_to_all_s(layout) * 1e3:.2f}",
            f"{layout.step_s * 1e3:.2f}",
            f"{step_s * 1e3:.2f}",
            f"{100 * (step_s / layout.step_s - 1):+.1f}",
            f"{left_out_s * 1e3:.2f}",
            f"{100 * (left_out_s / layout.step_s - 1):+.1f}",
        )


def _order(layouts: Sequence[MeasuredLayout], model: StepModel) -> str:
    measured = [each.name for each in sorted(layouts, key=lambda each: each.step_s)]
    predicted = [each.name for each in sorted(layouts, key=model.step_s)]
    same = "the same as measured" if measured == predicted else f"measured: {', '.join(measured)}"
    return f"order predicted, fastest first: {', '.join(predicted)}; {same}"


if __name__ == "__main__":
    main()
