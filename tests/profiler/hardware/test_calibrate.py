"""What a calibration makes of its measurements; the measurements themselves need GPUs."""

from __future__ import annotations

from dataclasses import replace

from profiler.hardware import read_hardware
from profiler.hardware.all_to_all_times import NvlinkTimes
from profiler.hardware.calibrate import _kernel, _sources

BASE = read_hardware("h200")


def test_measured_links_replace_those_of_the_base() -> None:
    kernel = _kernel(BASE.prefill, NvlinkTimes(1e-4, 2e11), 5e11)
    assert (kernel.fixed_s, kernel.nvlink_bytes_per_s, kernel.handled_bytes_per_s) == (2e-4, 2e11, 5e11)
    assert kernel.rdma_bytes_per_s == BASE.prefill.rdma_bytes_per_s


def test_one_gpu_keeps_the_links_of_the_base_and_says_so() -> None:
    assert _kernel(BASE.decode, None, None) == BASE.decode
    sources = _sources(BASE, tool="moeplan", gpus=1, samples=27, nvlink=None)
    assert sources["prefill.nvlink_bytes_per_s"] == "not measured: as in the profile h200"


def test_every_figure_of_a_measured_profile_has_a_source() -> None:
    for nvlink in (None, NvlinkTimes(1e-4, 2e11)):
        sources = _sources(BASE, tool="moeplan", gpus=4, samples=27, nvlink=nvlink)
        profile = replace(
            BASE,
            prefill=_kernel(BASE.prefill, nvlink, 5e11),
            decode=_kernel(BASE.decode, nvlink, None),
            sources=sources,
        )
        assert "rdma_bytes_per_s" in " ".join(profile.sources)
        assert "not measured" in profile.sources["decode.rdma_bytes_per_s"]
        assert ("all_to_all_single" in profile.sources["decode.nvlink_bytes_per_s"]) == (nvlink is not None)
