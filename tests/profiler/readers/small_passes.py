"""Passes of one small model, and what tests ask of their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from profiler.trace import NO_EXPERT
from tests.profiler.readers.sglang_files import (
    Ints,
    popularity,
    rng,
    route,
    trivial_layout,
)

LAYERS, EXPERTS, TOP_K = 3, 16, 4
IN_PLACE = trivial_layout(layers=LAYERS, experts=EXPERTS)


def routed(seed: int, tokens: int, *, top_k: int = TOP_K) -> Ints:
    popular_LE = popularity(rng(1), layers=LAYERS, experts=EXPERTS)
    return route(rng(seed), popular_LE, tokens=tokens, top_k=top_k)


def counted(topk_LTK: Any, experts: int) -> list[list[int]]:
    return [
        np.bincount(row[row != NO_EXPERT], minlength=experts).tolist() for row in topk_LTK.reshape(len(topk_LTK), -1)
    ]


def without_counts(path: Path) -> Path:
    """Make records of it as older recorders wrote them."""
    content = torch.load(path, weights_only=True)
    for record in content["records"]:
        del record["global_physical_count"]
    torch.save(content, path)
    return path
