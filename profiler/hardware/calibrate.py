"""Measure a hardware profile on the GPUs at hand; torch is imported late.

Expert products are measured on one GPU, handling of routed tokens too, the all-to-all over all of them with
``torch.distributed`` (NCCL). What cannot be measured here (links between nodes, fp8 products, with one GPU any link) is
taken from another profile, and the sources say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from placement.hardware import AllToAll, HardwareProfile
from placement.model_shape import ExpertShape
from profiler.errors import CalibrationFailed, NoGpu
from profiler.hardware.all_to_all_times import NvlinkTimes, measure_nvlink
from profiler.hardware.fitting import ExpertSample, LinkSample, fit_expert_times, fit_link
from profiler.hardware.gpu_clock import median_seconds

SHAPES = tuple(
    ExpertShape(hidden, width, 6 * hidden * width) for hidden, width in ((2048, 1408), (4096, 1536), (7168, 2048))
)
"""Hidden size and expert width of DeepSeek-V2-Lite, Qwen3-235B and DeepSeek-V3, in bf16."""

ROWS = (384, 3072, 24576)
ACTIVE = (4, 16, 64)
HANDLED_ROWS = (8192, 65536)
HANDLED_HIDDEN = 4096
HANDLED_TOP_K = 8

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Calibration:
    """A measured profile and how far its formula is from what it was fitted on.

    Attributes
    ----------
    profile : HardwareProfile
    median_error, worst_error : float
        Of the expert times, relative.
    gpus : int
        GPUs that took part.
    """

    profile: HardwareProfile
    median_error: float
    worst_error: float
    gpus: int


def calibrate(base: HardwareProfile, *, name: str, tool: str, progress: Progress | None = None) -> Calibration:
    """Measure a profile.

    Parameters
    ----------
    base
        Gives what cannot be measured here.
    name
        Of the new profile.
    tool
        What the sources call the program that measured.
    progress
        Called with the part that is done.

    Raises
    ------
    NoGpu
        torch finds no CUDA device.
    CalibrationFailed
        A kernel or the communication failed; nothing was written.
    """
    import torch

    if not torch.cuda.is_available():
        raise NoGpu(
            f"torch {torch.__version__} finds no CUDA device here; run this on a machine with the GPUs to measure."
        )
    report = progress or _silent
    gpus = torch.cuda.device_count()
    try:
        samples = _expert_samples(torch, lambda done: report(0.7 * done))
        handled = _handled(torch)
        report(0.8)
        nvlink = measure_nvlink(gpus) if gpus > 1 else None
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CalibrationFailed(f"measuring failed: {reason[:300]}") from error
    report(1.0)
    said = f"{tool}, torch {torch.__version__}"
    expert = fit_expert_times(samples)
    errors = [abs(float(expert.seconds(e.rows, e.active_experts, expert=e.expert)) / e.seconds - 1) for e in samples]
    properties = torch.cuda.get_device_properties(0)
    ratio = base.expert.flops_per_s.get("fp8", 0.0) / base.expert.flops_per_s["bf16"]
    rates = {**expert.flops_per_s, **({"fp8": expert.flops_per_s["bf16"] * ratio} if ratio else {})}
    profile = HardwareProfile(
        name=name,
        gpu=properties.name,
        memory_gib=round(properties.total_memory / 2**30, 1),
        expert=replace(expert, flops_per_s=rates),
        prefill=_kernel(base.prefill, nvlink, handled),
        decode=_kernel(base.decode, nvlink, None),
        sources=_sources(base, tool=said, gpus=gpus, samples=len(samples), nvlink=nvlink),
    )
    return Calibration(profile, median(errors), max(errors), gpus)


def _silent(_: float) -> None:
    """Report to nobody."""


def _expert_samples(torch: Any, report: Progress) -> list[ExpertSample]:
    samples = []
    for index, expert in enumerate(SHAPES):
        weights = ExpertProducts(torch, expert, most=max(ACTIVE))
        for rows in ROWS:
            for active in ACTIVE:
                seconds = median_seconds(torch, weights.products(rows, active))
                samples.append(ExpertSample(expert, rows, active, seconds))
        del weights
        torch.cuda.empty_cache()
        report((index + 1) / len(SHAPES))
    return samples


class ExpertProducts:
    """Weights of one shape on the GPU, and their products as engines compute them: grouped, with SiLU between."""

    def __init__(self, torch: Any, expert: ExpertShape, *, most: int) -> None:
        kind = {"dtype": torch.bfloat16, "device": "cuda"}
        self._torch, self._expert = torch, expert
        self._up = torch.randn(most, expert.hidden, 2 * expert.width, **kind) * expert.hidden**-0.5
        self._down = torch.randn(most, expert.width, expert.hidden, **kind) * expert.width**-0.5

    def products(self, rows: int, active: int) -> Callable[[], None]:
        """Return what computes so many rows, evenly over so many experts."""
        torch = self._torch
        tokens = torch.randn(rows, self._expert.hidden, dtype=torch.bfloat16, device="cuda")
        ends = torch.tensor([rows * (each + 1) // active for each in range(active)], dtype=torch.int32, device="cuda")
        grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        up, down = self._up[:active], self._down[:active]

        def run() -> None:
            gate_up = grouped(tokens, up, offs=ends)
            gate, linear = gate_up.chunk(2, dim=-1)
            grouped(torch.nn.functional.silu(gate) * linear, down, offs=ends)

        return run


def _handled(torch: Any) -> float:
    """Return bytes per second of sorting routed tokens by expert and adding their results up, both ways together."""
    samples = []
    for rows in HANDLED_ROWS:
        tokens = torch.randn(rows // HANDLED_TOP_K, HANDLED_HIDDEN, dtype=torch.bfloat16, device="cuda")
        order = torch.randint(0, len(tokens), (rows,), device="cuda")
        added = torch.zeros_like(tokens)

        def run(tokens: Any = tokens, order: Any = order, added: Any = added) -> None:
            added.index_add_(0, order, tokens.index_select(0, order))

        samples.append(LinkSample(0.0, rows * HANDLED_HIDDEN * 4.0, median_seconds(torch, run)))
    return fit_link(samples).sent_bytes_per_s


def _kernel(base: AllToAll, nvlink: NvlinkTimes | None, handled_bytes_per_s: float | None) -> AllToAll:
    measured = replace(base, handled_bytes_per_s=handled_bytes_per_s)
    if nvlink is None:
        return measured
    return replace(measured, fixed_s=2 * nvlink.fixed_s, nvlink_bytes_per_s=nvlink.bytes_per_s)


def _sources(
    base: HardwareProfile, *, tool: str, gpus: int, samples: int, nvlink: NvlinkTimes | None
) -> dict[str, str]:
    copied = f"not measured: as in the profile {base.name}"
    products = f"{tool}: fitted on {samples} medians of grouped bf16 products of three shapes on one GPU"
    sent = f"{tool}: all_to_all_single over {gpus} GPUs with NCCL, of several sizes" if nvlink else copied
    fixed = f"{sent}; dispatch and combine are one call each" if nvlink else copied
    links = {
        "fixed_s": fixed,
        "nvlink_bytes_per_s": sent,
        "rdma_bytes_per_s": copied,
        "dispatch_bytes_per_value": copied,
        "combine_bytes_per_value": copied,
    }
    return {
        "memory_gib": f"{tool}: the device's total memory",
        "expert.fixed_s": products,
        "expert.weight_bytes_per_s": products,
        "expert.overlap": products,
        "expert.flops_per_s.bf16": products,
        **({"expert.flops_per_s.fp8": f"{copied}, fp8 over bf16"} if "fp8" in base.expert.flops_per_s else {}),
        **{f"{phase}.{key}": text for phase in ("prefill", "decode") for key, text in links.items()},
        "prefill.handled_bytes_per_s": f"{tool}: gathering rows and adding them up with torch's own kernels on one GPU",
    }
