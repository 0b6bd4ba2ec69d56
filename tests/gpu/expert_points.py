"""Times of a MoE layer's experts on one GPU, in the products that ``moeplan calibrate`` times and in SGLang's kernels.

    python -m tests.gpu.expert_points DEVICE        prints one JSON object

Runs where SGLang can be imported. On a CPU, a rehearsal, all are the same loop of plain products.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from placement.model_shape import ExpertShape


@dataclass(frozen=True)
class Points:
    """What is timed.

    Attributes
    ----------
    expert : ExpertShape
    experts, top_k : int
    rows_active : tuple of (int, int)
        Routed tokens, a multiple of ``top_k``, and how many experts they go to evenly, at least ``top_k``.
    """

    expert: ExpertShape
    experts: int
    top_k: int
    rows_active: tuple[tuple[int, int], ...]

    def routed(self, rows: int, active: int) -> list[list[int]]:
        """Return each token's experts: all active ones equally often, none twice for a token."""
        tokens = rows // self.top_k
        return [[(token * self.top_k + k) % active for k in range(self.top_k)] for token in range(tokens)]


POINTS = {
    # DeepSeek-V2-Lite; rows and active experts that ``moeplan calibrate`` fits nothing on.
    "cuda": Points(
        ExpertShape(2048, 1408, 6 * 2048 * 1408),
        experts=64,
        top_k=6,
        rows_active=((768, 8), (768, 48), (1536, 32), (6144, 24), (12288, 64), (49152, 32)),
    ),
    "cpu": Points(ExpertShape(64, 32, 6 * 64 * 32), experts=8, top_k=2, rows_active=((16, 4), (64, 8), (256, 2))),
}


def seconds(device: str) -> dict[str, list[float]]:
    """Return medians of all points by kernel: ``grouped_s``, ``sglang_s``, and ``sglang_graph_s`` from a CUDA graph."""
    import torch

    points = POINTS[device]
    time_of = _on_gpu(torch, points) if device == "cuda" else _on_cpu(torch)
    timed = [time_of(rows, active) for rows, active in points.rows_active]
    return {name: [each[name] for each in timed] for name in timed[0]}


def _on_gpu(torch: Any, points: Points) -> Callable[[int, int], dict[str, float]]:
    from sglang.srt.runtime_context import get_context

    from profiler.hardware.calibrate import ExpertProducts
    from profiler.hardware.gpu_clock import median_seconds

    get_context().override_server_args().install()  # kernels ask it for defaults
    products = ExpertProducts(torch, points.expert, most=points.experts)

    def time_of(rows: int, active: int) -> dict[str, float]:
        kernels = _sglang(torch, points, rows, active)
        eager_s = median_seconds(torch, kernels)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernels()
        return {
            "grouped_s": median_seconds(torch, products.products(rows, active)),
            "sglang_s": eager_s,
            "sglang_graph_s": median_seconds(torch, graph.replay),
        }

    return time_of


def _sglang(torch: Any, points: Points, rows: int, active: int) -> Callable[[], None]:
    """Return what runs SGLang's fused kernels as an engine with all experts on one GPU would."""
    from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
    from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_experts
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    kind = {"dtype": torch.bfloat16, "device": "cuda"}
    hidden, width = points.expert.hidden, points.expert.width
    up = torch.randn(points.experts, 2 * width, hidden, **kind) * hidden**-0.5
    down = torch.randn(points.experts, hidden, width, **kind) * width**-0.5
    tokens = torch.randn(rows // points.top_k, hidden, **kind)
    slot_TK = torch.tensor(points.routed(rows, active), dtype=torch.int32, device="cuda")
    weight_TK = torch.full(slot_TK.shape, 1.0 / points.top_k, dtype=torch.float32, device="cuda")
    topk = StandardTopKOutput(weight_TK, slot_TK, weight_TK)
    counts = {"num_experts": points.experts, "num_local_experts": points.experts, "top_k": points.top_k}
    config = MoeRunnerConfig(**counts, hidden_size=hidden, intermediate_size_per_partition=width, inplace=True)
    return lambda: fused_experts(hidden_states=tokens, w1=up, w2=down, topk_output=topk, moe_runner_config=config)


def _on_cpu(torch: Any) -> Callable[[int, int], dict[str, float]]:
    expert = POINTS["cpu"].expert

    def time_of(rows: int, active: int) -> dict[str, float]:
        tokens = torch.randn(rows // active, expert.hidden)
        up = torch.randn(active, expert.hidden, expert.width)
        spans = []
        for _ in range(5):
            begin_s = time.perf_counter()
            for each in up:
                tokens @ each @ each.T
            spans.append(time.perf_counter() - begin_s)
        return dict.fromkeys(("grouped_s", "sglang_s", "sglang_graph_s"), median(spans))

    return time_of


if __name__ == "__main__":
    print(json.dumps(seconds(sys.argv[1])))
