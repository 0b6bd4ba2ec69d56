"""Routing of real models, recorded by others: read as published. Skipped where ``../shared/data`` is absent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from profiler.inputs import open_inputs, trace_facts
from profiler.readers.options import ReadOptions
from profiler.windows import WindowBy, build_demand
from profiler.writers.parquet import import_trace
from tests.profiler.recordings import shape

FOLDER = Path(__file__).parents[2].parent / "shared" / "data"

if not FOLDER.is_dir():
    pytest.skip("the public recordings (../shared/data) are not here", allow_module_level=True)


def test_deepseek_v2_lite_is_the_same_directly_and_by_way_of_a_trace(tmp_path: Path) -> None:
    readers = open_inputs([FOLDER / "deepseek-v2-lite.npz"], ReadOptions(model=shape(27, 64, dense=1, top_k=6)))
    import_trace(readers, tmp_path / "t.parquet")
    again = open_inputs([tmp_path / "t.parquet"], ReadOptions())
    direct, imported = (
        build_demand(inputs, window_by=WindowBy("domain"), gpus=8).demand for inputs in (readers, again)
    )
    assert np.array_equal(direct.tokens_WLSE, imported.tokens_WLSE)
    assert direct.window_names == imported.window_names == ("intent", "law", "summary", "translation")
    with np.load(FOLDER / "deepseek-v2-lite.npz") as arrays:
        topk, domain = arrays["topk"], arrays["domain"]
        expected = np.bincount(topk[4][domain == 2].ravel(), minlength=64)
    assert direct.tokens_WLE[2, 5].tolist() == expected.tolist()
    assert direct.moe_layers == tuple(range(1, 27))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_counts_by_subject_and_language_keep_their_windows(name: str) -> None:
    demand = build_demand(open_inputs([FOLDER / f"{name}.npz"], ReadOptions()), window_by=WindowBy(), gpus=8).demand
    with np.load(FOLDER / f"{name}.npz") as arrays:
        assert np.array_equal(demand.tokens_WLE, arrays["counts"])
        assert demand.window_names == tuple(arrays["window_names"].tolist())


@pytest.mark.parametrize("path", sorted(FOLDER.glob("deepseek-v3-*.json")), ids=lambda path: path.stem)
def test_sglang_statistics_have_58_equal_layers(path: Path) -> None:
    (reader,) = open_inputs([path], ReadOptions(model=shape(61, 256, dense=3, top_k=8, draft=1)))
    facts = trace_facts(reader)
    assert facts["moe_layers"] == list(range(3, 61))
    assert facts["routed_tokens"] == int(np.sum(json.loads(path.read_text())["logical_count"]))
    assert facts["warnings"] == []
