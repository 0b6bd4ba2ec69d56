"""What of sizes and of the hardware profile needs neither engine nor GPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from profiler.hardware import read_hardware
from tests.gpu.cache_sizes import LoggedMemory, logged_memory, row_of, sized_setup
from tests.gpu.expert_points import POINTS
from tests.gpu.hardware_check import KERNELS, compare_points, errors_of
from tests.gpu.machine import cpu_machine, gpu_machine
from tests.gpu.server import arguments
from tests.gpu.tables import two_gpu_table

LOG = """\
[2026-11-30 02:30:01 DP0 TP0 EP0] Load weight begin. avail mem=138.32 GB
[2026-11-30 02:30:01 DP1 TP1 EP1] Load weight begin. avail mem=138.10 GB
[2026-11-30 02:30:09 DP0 TP0 EP0] Load weight end. elapsed=7.9 s, type=Qwen3MoeForCausalLM, avail mem=135.6 GB, mem usage=2.70 GB.
[2026-11-30 02:30:09 DP1 TP1 EP1] Load weight end. elapsed=8.0 s, type=Qwen3MoeForCausalLM, avail mem=135.4 GB, mem usage=2.72 GB.
[2026-11-30 02:30:11 DP0 TP0 EP0] max_total_num_tokens=1457152, chunked_prefill_size=8192, max_running_requests=128
"""  # noqa: E501


def test_a_log_says_what_was_free_on_the_fullest_gpu() -> None:
    assert logged_memory(LOG) == LoggedMemory(free_gib=138.10, weights_gib=2.72, tokens=1457152)


@pytest.mark.parametrize("missing", ["Load weight begin", "Load weight end", "max_total_num_tokens"])
def test_a_log_that_lacks_a_figure_is_refused(missing: str) -> None:
    text = "\n".join(line for line in LOG.splitlines() if missing not in line)
    with pytest.raises(ValueError, match="the engine's log says no"):
        logged_memory(text)


def test_only_an_engine_that_is_sized_takes_what_memory_it_finds(tmp_path: Path) -> None:
    machine = cpu_machine(tmp_path / "environment", tmp_path)
    setup = sized_setup("size-8", tmp_path, redundant=8, fraction=0.125, extra=())
    sized = arguments(machine, setup, port=1)
    assert "--max-total-tokens" not in sized
    assert sized[len(sized) - 1 - sized[::-1].index("--mem-fraction-static") + 1] == "0.125"
    assert sized[sized.index("--dp") + 1] == "2"


def test_commands_on_gpus_leave_multicast_off(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    assert gpu_machine(tmp_path, gpus=2).tool_variables()["NCCL_NVLS_ENABLE"] == "0"


def test_the_row_of_one_number_of_slots_is_found_and_a_missing_one_refused() -> None:
    said = {"rows": [{"memory": {"slots_per_gpu": slots, "cache_tokens": 10 - slots}} for slots in (4, 5)]}
    assert row_of(said, 5)["cache_tokens"] == 5
    with pytest.raises(ValueError, match="nothing of 6 slots"):
        row_of(said, 6)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_timed_tokens_go_evenly_to_as_many_experts_as_said(device: str) -> None:
    points = POINTS[device]
    for rows, active in points.rows_active:
        routed = points.routed(rows, active)
        assert all(len(set(token)) == points.top_k for token in routed)
        load = Counter(expert for token in routed for expert in token)
        assert sum(load.values()) == rows
        assert len(load) == active
        assert max(load.values()) - min(load.values()) <= 1


def test_no_timed_point_is_one_that_a_calibration_is_fitted_on() -> None:
    from profiler.hardware.calibrate import ACTIVE, ROWS

    fitted = {(rows, active) for rows in ROWS for active in ACTIVE}
    assert not fitted & set(POINTS["cuda"].rows_active)


def test_predicted_and_timed_points_stand_beside_each_other_in_the_table() -> None:
    profile, points = read_hardware("h200"), POINTS["cuda"]
    exact = [float(profile.expert.seconds(rows, active, expert=points.expert)) for rows, active in points.rows_active]
    timed = {
        "grouped_s": exact,
        "sglang_s": [2 * each for each in exact],
        "sglang_graph_s": [*exact[:-1], 0.8 * exact[-1]],
    }
    found = compare_points(profile, points, timed)
    errors = errors_of(found)
    assert errors["grouped_worst"] == 0
    assert (errors["sglang_median"], errors["sglang_worst"]) == (0.5, 0.5)
    assert (errors["sglang_graph_median"], errors["sglang_graph_worst"]) == (0, 0.25)
    assert set(timed) == set(KERNELS)
    kinds = [{"kind": "expert time", **each} for each in found] + [{"kind": "expert times", **errors}]
    table = two_gpu_table(kinds)
    assert "sglang 50.0 / 50.0 %" in table
    assert "(-50.0 %)" in table
    assert table.count("| 768 |") == 2


def test_measured_figures_and_cached_tokens_are_in_the_table() -> None:
    all_to_all = {"fixed_s": 2e-4, "nvlink_bytes_per_s": 2e11, "handled_bytes_per_s": 5e11}
    hardware = {
        "kind": "hardware",
        **{"took_s": 21.5, "gpus": 2, "gpu": "NVIDIA H200", "memory_gib": 139.8, "fit_median": 0.05, "fit_worst": 0.2},
        "expert": {"flops_per_s": {"bf16": 5e14}, "weight_bytes_per_s": 3e12, "fixed_s": 8e-5, "overlap": 2.5},
        **{"prefill": all_to_all, "decode": all_to_all},
    }
    size = {
        "kind": "cache size",
        **{"engine": "size-8", "model": "hot", "slots_per_gpu": 36, "fraction": 0.1, "free_gib": 138.1},
        **{"predicted_weights_gib": 2.65, "weights_gib": 2.72, "predicted_tokens": 990, "tokens": 1000},
        "relative_error": -0.01,
    }
    table = two_gpu_table([hardware, size])
    assert "took 21.5 s on 2 x NVIDIA H200" in table
    assert "| 2.65 / 2.72 | 990 / 1000 | -1.00 % |" in table
