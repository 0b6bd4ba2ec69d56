"""Bounds on recorded routing of real models; skipped where the recordings are not at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placement.bounds import fewest_slots_for_local_gpu, local_gpu_bound
from placement.demand import Demand
from placement.topology import Topology

RECORDINGS = Path(__file__).resolve().parents[4] / "shared"
DEEPSEEK_V2_LITE = RECORDINGS / "data/deepseek-v2-lite.npz"
TINY_MOE = RECORDINGS / "tiny-moe/recordings/trace_mixed.npz"

pytestmark = pytest.mark.skipif(
    not (DEEPSEEK_V2_LITE.is_file() and TINY_MOE.is_file()),
    reason="recordings of real models (../shared beside the project) are not at hand",
)


def demand_of_trace(path: Path, *, experts: int) -> Demand:
    topk_LTK = np.load(path)["topk"].astype(np.int64)
    return Demand.uniform([np.bincount(layer[layer >= 0].ravel(), minlength=experts) for layer in topk_LTK])


def test_deepseek_v2_lite_at_24_slots() -> None:
    demand = demand_of_trace(DEEPSEEK_V2_LITE, experts=64)
    assert local_gpu_bound(demand, Topology(8), 24).share == pytest.approx(0.536, abs=0.0005)


@pytest.mark.parametrize(("gpus", "slots_per_gpu"), [(2, 36), (4, 30), (8, 28)])
def test_deepseek_v2_lite_fewest_slots_for_60_percent(gpus: int, slots_per_gpu: int) -> None:
    demand = demand_of_trace(DEEPSEEK_V2_LITE, experts=64)
    assert fewest_slots_for_local_gpu(demand, Topology(gpus), 0.6) == slots_per_gpu


@pytest.mark.parametrize(
    ("gpus", "slots_per_gpu", "share"), [(2, 20, 0.706), (4, 12, 0.473), (8, 12, 0.524), (8, 16, 0.656)]
)
def test_tiny_moe_mixed(gpus: int, slots_per_gpu: int, share: float) -> None:
    demand = demand_of_trace(TINY_MOE, experts=32)
    assert local_gpu_bound(demand, Topology(gpus), slots_per_gpu).share == pytest.approx(share, abs=0.0005)
