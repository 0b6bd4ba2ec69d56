"""Make ``eplb_golden.json``: maps by the EPLB function inside an unpacked SGLang wheel.

    python tests/placement/baselines/make_eplb_golden.py PATH_OF_UNPACKED_WHEEL

Only ``sglang/srt/eplb/eplb_algorithms/deepseek.py`` is loaded from there; it needs torch alone. Its sort does not
keep the order of equal weights above 16 items (torch promises none), so cases with ties are made with torch's stable
sort; cases without ties are checked to come out the same either way.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

GOLDEN = Path(__file__).with_name("eplb_golden.json")
PLAIN_SORT = torch.Tensor.sort

# name, layers, experts, slots, gpus, nodes, groups (None: global), kind of counts
SHAPES: list[tuple[str, int, int, int, int, int, int | None, str]] = [
    ("global, no redundant slot", 2, 64, 64, 8, 1, None, "skewed"),
    ("global, a quarter redundant", 3, 64, 80, 8, 1, None, "skewed"),
    ("global, nodes are not looked at", 2, 32, 48, 12, 3, None, "skewed"),
    ("global, twice the slots", 2, 24, 48, 6, 1, None, "skewed"),
    ("global, one slot per GPU", 2, 8, 16, 16, 1, None, "skewed"),
    ("global, many replicas of few experts", 2, 4, 20, 5, 1, None, "skewed"),
    ("global, counts above 2^24 round to float32", 3, 64, 72, 8, 1, None, "large"),
    ("global, ties and unused experts", 4, 32, 40, 8, 1, None, "ties"),
    ("global, all counts equal", 1, 32, 40, 4, 1, None, "equal"),
    ("hierarchical, two nodes", 3, 64, 80, 8, 2, 8, "skewed"),
    ("hierarchical, four nodes", 2, 64, 96, 16, 4, 8, "skewed"),
    ("hierarchical, one group per node", 2, 32, 48, 8, 4, 4, "skewed"),
    ("hierarchical, one node", 2, 32, 40, 8, 1, 8, "skewed"),
    ("hierarchical, one GPU per node", 2, 32, 40, 4, 4, 8, "skewed"),
    ("hierarchical, one expert per group", 2, 16, 24, 4, 2, 16, "skewed"),
    ("hierarchical, counts above 2^24", 2, 64, 80, 8, 2, 8, "large"),
    ("hierarchical, ties and unused experts", 4, 32, 48, 8, 2, 8, "ties"),
]


def counts_of(kind: str, layers: int, experts: int, generator: np.random.Generator) -> np.ndarray:
    if kind == "equal":
        return np.full((layers, experts), 7, dtype=np.int64)
    if kind == "ties":
        return generator.integers(0, 4, size=(layers, experts))
    scale = 100_000 if kind == "skewed" else 30_000_000
    return (generator.gamma(0.8, scale, size=(layers, experts)) + 1).astype(np.int64)


def load_reference(wheel: Path) -> ModuleType:
    path = wheel / "sglang/srt/eplb/eplb_algorithms/deepseek.py"
    spec = importlib.util.spec_from_file_location("reference_eplb", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"{path} is not there: give the folder that holds sglang/.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stable_sort(tensor: torch.Tensor, dim: int, *, descending: bool) -> Any:
    return PLAIN_SORT(tensor, dim=dim, descending=descending, stable=True)


def main(wheel: Path) -> None:
    reference = load_reference(wheel)
    generator = np.random.default_rng(20260601)
    cases = []
    for name, layers, experts, slots, gpus, nodes, groups, kind in SHAPES:
        counts = counts_of(kind, layers, experts, generator)

        def reference_map(
            counts: np.ndarray = counts,
            slots: int = slots,
            groups: int | None = groups,
            nodes: int = nodes,
            gpus: int = gpus,
        ) -> list[list[int]]:
            weight = torch.tensor(counts)
            maps = reference.rebalance_experts(weight, slots, groups or 1, nodes, gpus, groups is not None)
            return maps[0].tolist()

        plain = reference_map()
        with mock.patch.object(torch.Tensor, "sort", stable_sort):
            golden = reference_map()
        if kind in ("skewed", "large") and plain != golden:
            raise SystemExit(f"'{name}' has ties: take another seed.")
        cases.append(
            {
                "name": name,
                "gpus": gpus,
                "nodes": nodes,
                "groups": groups,
                "counts": counts.tolist(),
                "physical_to_logical_map": golden,
            }
        )
    GOLDEN.write_text(json.dumps(cases, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
