"""``moeplan calibrate``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.output import print_json, print_line, progress_bar
from profiler.hardware import read_hardware, write_hardware
from profiler.hardware.calibrate import calibrate as measure


def calibrate(
    out: Annotated[Path, typer.Option(help="Hardware profile to write (.toml).", show_default=False)],
    base: Annotated[
        str, typer.Option(help="Profile that gives what cannot be measured here: links between nodes, fp8 products.")
    ] = "h200",
    as_json: cli.Json = False,
) -> None:
    """Measure a hardware profile on this machine's GPUs: expert products, handling of tokens, all-to-all (NCCL)."""
    known = read_hardware(base)
    with progress_bar("measuring") as advance:
        measured = measure(known, name=out.stem, tool=f"moeplan {version('moeplan')} calibrate", progress=advance)
    write_hardware(measured.profile, out)
    if as_json:
        errors = {"median_error": measured.median_error, "worst_error": measured.worst_error}
        print_json({"profile": measured.profile.to_dict(), "gpus": measured.gpus, **errors})
        return
    expert, prefill = measured.profile.expert, measured.profile.prefill
    print_line(f"{measured.gpus} x {measured.profile.gpu}, {measured.profile.memory_gib:g} GiB each")
    print_line(
        f"experts: {expert.flops_per_s['bf16'] / 1e12:.0f} TFLOPS in bf16, {expert.weight_bytes_per_s / 1e12:.2f} TB/s "
        f"of weights, {expert.fixed_s * 1e6:.0f} us fixed; median error {measured.median_error:.1%}, worst "
        f"{measured.worst_error:.1%}"
    )
    print_line(
        f"all-to-all: {prefill.nvlink_bytes_per_s / 1e9:.0f} GB/s sent per GPU, {prefill.fixed_s * 1e6:.0f} us fixed: "
        f"{measured.profile.sources['prefill.nvlink_bytes_per_s']}"
    )
    print_line(f"wrote {out}")
