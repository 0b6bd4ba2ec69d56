"""How fast copies per token are counted, and in how much memory: ``python -m tests.bench.token_metrics``.

A stream of routed ids is made up piece by piece, so that the peak of memory is that of the counting. Every row runs in
a process of its own. Rates are by CPU time; ``memory`` is the process's peak above what it takes before counting. A
longer stream must not need more, but for the counts of single steps, of which a sample of at most 128 MiB is kept.
``--ids 1000000000`` is the size of the largest recordings, ``--case N`` one row alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placement.baselines import hot_replication, plan_eplb
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import Problem
from placement.score import score_tokens
from placement.tokens import Tokens
from placement.topology import Topology
from tests.bench.support.tables import print_head, print_rows

PIECE_TOKENS = 20_000
TOKENS_PER_REQUEST = 157


@dataclass(frozen=True)
class Case:
    """A model, a machine and a layout to count."""

    name: str
    layers: int
    experts: int
    top_k: int
    gpus: int
    nodes: int
    slots_per_gpu: int
    layout: str
    homes: bool
    sample_tokens: int | None = None


CASES = (
    Case("deepseek-v2-lite shape, no replicas", 26, 64, 6, 8, 1, 8, "eplb", homes=False),
    Case("deepseek-v2-lite shape, hottest everywhere", 26, 64, 6, 8, 1, 12, "hot", homes=False),
    Case("deepseek-v2-lite shape, replicas drawn", 26, 64, 6, 8, 1, 12, "eplb", homes=False),
    Case("deepseek-v2-lite shape, replicas drawn, homes known", 26, 64, 6, 8, 1, 12, "eplb", homes=True),
    Case("deepseek-v3 shape, 4 nodes, replicas drawn", 58, 256, 8, 32, 4, 9, "eplb", homes=False),
    Case("deepseek-v3 shape, 4 nodes, homes known", 58, 256, 8, 32, 4, 9, "eplb", homes=True),
    Case("the same, 100,000 tokens sampled", 58, 256, 8, 32, 4, 9, "eplb", homes=True, sample_tokens=100_000),
)


@dataclass(frozen=True)
class MadeUp:
    """Skewed ids, the same each time the stream is gone through."""

    case: Case
    tokens: int

    def __iter__(self) -> Iterator[Tokens]:
        case = self.case
        for start in range(0, self.tokens, PIECE_TOKENS):
            count = min(PIECE_TOKENS, self.tokens - start)
            rng = np.random.default_rng(start)
            first = (case.experts * rng.random((case.layers, count, 1), dtype=np.float32) ** 1.5).astype(np.uint16)
            steps = rng.integers(1, case.experts // case.top_k, (case.layers, count, case.top_k - 1), dtype=np.uint16)
            ids = np.concatenate([first, first + np.cumsum(steps, axis=2, dtype=np.uint16)], axis=2) % case.experts
            number = np.arange(start, start + count)
            yield Tokens(
                experts_LTK=ids.astype(np.uint16),
                experts=case.experts,
                home_T=(number // TOKENS_PER_REQUEST) % case.gpus if case.homes else None,
                window_T=np.zeros(count, dtype=np.int32),
                request_T=number // TOKENS_PER_REQUEST,
                step_T=number // 256,
                phase_T=np.full(count, 2, dtype=np.uint8),
            )


def measure(case: Case, ids: int) -> dict[str, float]:
    """Count in this process; the time to make the ids up is taken off."""
    tokens = max(1, ids // (case.layers * case.top_k))
    stream, topology = MadeUp(case, tokens), Topology(case.gpus, case.nodes)
    layout = _layout(case, stream, topology)
    making = time.process_time()
    for _ in stream:
        pass
    making = time.process_time() - making
    before_bytes, started = _peak_bytes(), time.process_time()
    found = score_tokens(
        {"it": layout}, stream, topology, dispatch=Dispatch.NEAREST_DYNAMIC, sample_tokens=case.sample_tokens
    )["it"]
    return {
        "cpu_s": time.process_time() - started - making,
        "grown_bytes": _peak_bytes() - before_bytes,
        "ids": tokens * case.layers * case.top_k,
        "gpus_per_token": found.gpus_per_token or 0.0,
        "active_experts": found.active_experts or 0.0,
    }


def _layout(case: Case, stream: MadeUp, topology: Topology) -> Layout:
    piece = next(iter(MadeUp(case, min(stream.tokens, PIECE_TOKENS))))
    counts_LE = np.stack([np.bincount(ids.ravel(), minlength=case.experts) for ids in piece.experts_LTK])
    problem = Problem(Demand.uniform(counts_LE), topology, case.slots_per_gpu)
    return plan_eplb(problem).layout if case.layout == "eplb" else hot_replication(problem)


def _peak_bytes() -> int:
    kilo = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilo


def _in_child(number: int, ids: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.token_metrics", "--case", str(number), "--ids", str(ids)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=20_000_000)
    parser.add_argument("--case", type=int, help=f"one row alone, 0 to {len(CASES) - 1}, as JSON")
    chosen = parser.parse_args()
    if chosen.case is not None:
        print(json.dumps(measure(CASES[chosen.case], chosen.ids)))
        return
    print_head(
        "Copies per token and active experts of one layout, streaming",
        protocol=(
            f"{chosen.ids:,} routed ids per row, made up in pieces of {PIECE_TOKENS:,} tokens; nearest-dynamic",
            "seconds and rates are CPU time of one core; memory is the peak above that before counting",
        ),
    )
    rows = ((number, case, _in_child(number, chosen.ids)) for number, case in enumerate(CASES))
    print_rows(
        ("case", "CPU s", "M ids / s", "memory MiB", "gpus_per_token", "active_experts"),
        (
            (
                case.name,
                f"{row['cpu_s']:.1f}",
                f"{row['ids'] / row['cpu_s'] / 1e6:.0f}",
                f"{row['grown_bytes'] / 2**20:.0f}",
                row["gpus_per_token"],
                row["active_experts"],
            )
            for _, case, row in rows
        ),
    )


if __name__ == "__main__":
    main()
