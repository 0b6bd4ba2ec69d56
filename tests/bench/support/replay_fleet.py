"""Many replay engines of one large shape in one process: ``python -m tests.bench.support.replay_fleet ENGINES NODES``.

They stand still; what they are asked is their shape, their layout and their health. The first line printed is the list
of their URLs, as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.replay import running_replay

LAYERS, EXPERTS, TOP_K = 58, 256, 8
GPUS, SLOTS_PER_GPU = 32, 9
TOKENS, TOKENS_PER_REQUEST = 128, 4


def main() -> None:
    engines, nodes = map(int, sys.argv[1:])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moeplan-fleet-")))
        lot = np.random.default_rng(0)
        topk_LTK = lot.random((LAYERS, TOKENS, EXPERTS)).argpartition(TOP_K)[..., :TOP_K].astype(np.int16)
        arrays: dict[str, Any] = {
            "topk": topk_LTK,
            "request_id": np.arange(TOKENS) // TOKENS_PER_REQUEST,
            "num_experts": np.array(EXPERTS),
        }
        np.savez(folder / "tokens.npz", **arrays)
        urls = []
        for _ in range(engines):
            (reader,) = open_inputs([folder / "tokens.npz"], ReadOptions())
            engine = running_replay(
                reader, gpus=GPUS, nodes=nodes, slots_per_gpu=SLOTS_PER_GPU, homes="round-robin", steps_per_s=0.0
            )
            urls.append(stack.enter_context(engine))
        print(json.dumps(urls), flush=True)
        sys.stdin.buffer.read()  # until whoever started this is gone


def recording_of(folder: Path, number: int, *, seed: int) -> Path:
    """Write synthetic counts of three windows of an engine's traffic and return the file."""
    lot = np.random.default_rng((seed, number))
    usual_LE = lot.lognormal(sigma=0.8, size=(LAYERS, EXPERTS))
    counts_WLE = usual_LE * lot.lognormal(sigma=0.5, size=(3, LAYERS, EXPERTS)) * 1e4
    file = folder / f"engine-{number}.npz"
    np.savez(file, counts=counts_WLE.astype(np.int64))
    return file


def first_layout(folder: Path) -> Path:
    """Write the layout that the engines run and return the file."""
    slots = GPUS * SLOTS_PER_GPU
    file = folder / "running.json"
    file.write_text(json.dumps({"physical_to_logical_map": [[slot % EXPERTS for slot in range(slots)]] * LAYERS}))
    return file


if __name__ == "__main__":
    main()
