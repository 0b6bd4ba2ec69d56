"""A long trace needs about one file in memory, decompressed, and never two."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.windows import WindowBy, build_demand
from profiler.writers.parquet import import_trace

LAYERS, TOKENS, TOP_K = 26, 100_000, 6


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "long.npz"
    one_layer = np.random.default_rng(0).integers(0, 64, (TOKENS, TOP_K), dtype=np.int8)
    topk = np.stack([(one_layer + layer) % 64 for layer in range(LAYERS)]).astype(np.int8)
    request_id = np.arange(TOKENS, dtype=np.int32) // 100
    np.savez(path, topk=topk, request_id=request_id, domain=(request_id % 3).astype(np.int8), num_experts=np.int32(64))
    return path


def peak_bytes(task: Callable[[], object]) -> int:
    """Return the peak of what NumPy and Arrow had allocated during a task."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)  # counts from zero, whatever ran before in this process
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        task()
        return tracemalloc.get_traced_memory()[1] + (counted.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


def test_demand_and_import_stay_below_twice_the_file(long_trace: Path, tmp_path: Path) -> None:
    unpacked_bytes = long_trace.stat().st_size  # stored as it is
    trace = tmp_path / "long.parquet"

    def demand(path: Path, rule: str) -> Callable[[], object]:
        return lambda: build_demand(open_inputs([path], ReadOptions()), window_by=WindowBy.parse(rule), gpus=8)

    assert peak_bytes(demand(long_trace, "domain")) < 2 * unpacked_bytes
    assert peak_bytes(lambda: import_trace(open_inputs([long_trace], ReadOptions()), trace)) < 2 * unpacked_bytes
    assert peak_bytes(demand(trace, "domain")) < 32 * 2**20  # a few row groups, however long the trace
