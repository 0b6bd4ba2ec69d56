"""per_token dumps: rows that are no tokens, passes of any size, damaged records."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler.errors import InputsDisagree, UnreadableDump
from profiler.readers import sglang_per_token, sglang_survey
from profiler.trace import NO_EXPERT, TokenChunk
from tests.profiler.readers.sglang_files import (
    count,
    decode,
    idle,
    opened,
    popularity,
    prefill,
    random_layout,
    rng,
    route,
    to_slots,
    trivial_layout,
    write_counts,
    write_tokens,
)
from tests.profiler.readers.small_passes import EXPERTS, IN_PLACE, LAYERS, TOP_K, counted, routed, without_counts
from tests.profiler.recordings import codes, shape, tokens_of

# --- layers and rows ------------------------------------------------------------------------------------------------


def test_dense_layers_have_no_experts_and_draft_rows_go_by_the_model(tmp_path: Path) -> None:
    experts = routed(0, 10)
    ids = experts.copy()
    ids[0] = -1
    path = write_tokens(tmp_path, 0, [prefill(1, ids)], IN_PLACE)
    topk_LTK = tokens_of(opened(path))["topk_LTK"]
    assert (topk_LTK[0] == NO_EXPERT).all()
    np.testing.assert_array_equal(topk_LTK[1:], experts[1:])
    reader = opened(path, model=shape(2, EXPERTS, dense=1, top_k=TOP_K))
    assert codes(reader.notices) == ["DRAFT_LAYERS_LEFT_OUT"]
    np.testing.assert_array_equal(tokens_of(reader)["topk_LTK"], topk_LTK[:2])


def test_tokens_without_any_expert_are_left_out(tmp_path: Path) -> None:
    experts = routed(0, 6)
    ids = experts.copy()
    ids[:, [1, 5]] = -1
    ids[0, 2] = -1  # one layer less is not none
    tokens = tokens_of(opened(write_tokens(tmp_path, 0, [prefill(1, ids)], IN_PLACE)))
    assert tokens["position_T"].tolist() == [0, 2, 3, 4]


def test_positions_that_no_token_can_have_are_unknown(tmp_path: Path) -> None:
    positions = [0, -1, -7, -(2**63), 2**31, 2**63 - 1, 2**31 - 1, 7, 8]
    path = write_tokens(tmp_path, 0, [prefill(1, routed(0, 9))], IN_PLACE)
    tokens = tokens_of(opened(changed(path, positions=positions)))
    assert tokens["position_T"].tolist() == [0, -1, -1, -1, -1, -1, 2**31 - 1, 7, 8]


def test_a_recording_without_tokens_has_a_header(tmp_path: Path) -> None:
    reader = opened(write_tokens(tmp_path, 0, [idle(1, LAYERS), idle(2, LAYERS)], IN_PLACE))
    assert (reader.header.kind, reader.header.layers, reader.header.experts) == ("tokens", LAYERS, EXPERTS)
    assert len(tokens_of(reader)["source_T"]) == 0


def test_small_passes_are_joined_and_large_ones_split_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = [decode(step, routed(step, 3), [step, step + 7, step + 20]) for step in range(40)]
    path = write_tokens(tmp_path, 0, passes, IN_PLACE)
    whole = tokens_of(opened(path))
    monkeypatch.setattr(sglang_per_token, "IDS_PER_CHUNK", 7 * 3 * LAYERS * TOP_K)
    chunks = [chunk for chunk in opened(path).chunks() if isinstance(chunk, TokenChunk)]
    assert [chunk.topk_LTK.shape[1] for chunk in chunks] == [21] * 5 + [15]
    np.testing.assert_array_equal(np.concatenate([chunk.topk_LTK for chunk in chunks], axis=1), whole["topk_LTK"])


def test_large_passes_are_worked_on_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout_LP = random_layout(rng(2), layers=LAYERS, experts=EXPERTS, redundant=8)
    long, short = (to_slots(rng(), routed(0, tokens), layout_LP) for tokens in (50, 2))
    passes = [prefill(1, long, lengths=[20, 30]), decode(2, short, [20, 30])]
    path = write_tokens(tmp_path, 0, passes, layout_LP)
    whole, facts = tokens_of(opened(path)), opened(path).facts()
    monkeypatch.setattr(sglang_survey, "IDS_PER_SLICE", 7 * LAYERS * 8)
    reader = opened(path)
    assert reader.facts() == facts
    for name, column in tokens_of(reader).items():
        np.testing.assert_array_equal(column, whole[name])


def test_reading_takes_little_memory_beside_the_mapped_file(tmp_path: Path) -> None:
    layers, experts = 48, 128
    layout_LP = trivial_layout(layers=layers, experts=experts)
    topk = route(rng(), popularity(rng(1), layers=layers, experts=experts), tokens=2000, top_k=8)
    path = write_tokens(tmp_path, 0, [prefill(step, np.roll(topk, step, axis=1)) for step in range(8)], layout_LP)
    file_bytes = path.stat().st_size
    assert file_bytes > 2**24
    tracemalloc.start()
    try:
        tokens = sum(chunk.topk_LTK.shape[1] for chunk in opened(path).chunks() if isinstance(chunk, TokenChunk))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tokens == 16_000
    assert peak_bytes < file_bytes  # with the file itself, which stays mapped, less than twice the file


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    redundant=st.integers(0, 20),
    top_k=st.integers(1, 8),
)
def test_experts_survive_any_layout(tmp_path: Path, seed: int, sizes: list[int], redundant: int, top_k: int) -> None:
    layout_LP = random_layout(rng(seed), layers=LAYERS, experts=EXPERTS, redundant=redundant)
    passes = [routed(seed + step, size, top_k=top_k) for step, size in enumerate(sizes)]
    records = [prefill(step, to_slots(rng(seed), experts, layout_LP)) for step, experts in enumerate(passes)]
    topk_LTK = tokens_of(opened(write_tokens(tmp_path, 0, records, layout_LP)))["topk_LTK"]
    np.testing.assert_array_equal(topk_LTK[:, :, :top_k], np.concatenate(passes, axis=1)[:, :, : topk_LTK.shape[2]])
    assert counted(topk_LTK, EXPERTS) == count(np.concatenate(passes, axis=1), EXPERTS).tolist()


# --- what is refused ------------------------------------------------------------------------------------------------


def changed(path: Path, **record: Any) -> Path:
    content = torch.load(path, weights_only=True)
    content["records"][-1].update(record)
    content["records"][-1] = {key: value for key, value in content["records"][-1].items() if value is not ...}
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    "record",
    [
        {"topk_ids_of_layer": ...},
        {"topk_ids_of_layer": torch.zeros(LAYERS, 9, dtype=torch.int32)},
        {"topk_ids_of_layer": torch.zeros(LAYERS, 9, 8)},
        {"topk_ids_of_layer": torch.zeros(LAYERS + 1, 9, 8, dtype=torch.int32)},
        {"topk_ids_of_layer": torch.full((LAYERS, 9, 8), -2, dtype=torch.int32)},
        {"topk_ids_of_layer": torch.zeros(LAYERS, 12, 8, dtype=torch.int32)},
        {"topk_ids_of_layer": [[1, 2]]},
        {"topk_ids_of_layer": torch.zeros(LAYERS, 9, 65, dtype=torch.int32)},
        {"topk_ids_of_layer": torch.zeros(5000, 9, 8, dtype=torch.int32)},
        {"forward_pass_id": 2**63},
        {"rank": 2**63},
        {"positions": [0, 1]},
        {"positions": ["a"] * 9},
        {"positions": [[0, 1]] * 9},
        {"input_ids": [0.5] * 9},
        {"extend_seq_lens": [4, -1]},
        {"extend_seq_lens": "9"},
        {"forward_mode": "prefill"},
    ],
    ids=lambda record: f"{next(iter(record))}",
)
def test_damaged_records_are_named(tmp_path: Path, record: dict[str, Any]) -> None:
    path = write_tokens(tmp_path, 0, [prefill(1, routed(0, 9)), prefill(2, routed(1, 9))], IN_PLACE)
    with pytest.raises(UnreadableDump, match=r"records"):
        opened(changed(path, **record))


def test_metadata_may_be_missing(tmp_path: Path) -> None:
    experts = routed(0, 9)
    path = write_tokens(tmp_path, 0, [prefill(1, experts)], IN_PLACE)
    changed(path, input_ids=..., positions=..., extend_seq_lens=..., forward_mode=..., misc_objects=...)
    tokens = tokens_of(opened(path))
    np.testing.assert_array_equal(tokens["topk_LTK"], experts)
    assert set(tokens["position_T"].tolist()) == {-1}
    assert set(tokens["phase_T"].tolist()) == {0}


def test_fewer_rows_than_tokens_keep_their_tokens(tmp_path: Path) -> None:
    """The recorder's buffer ends before a very large pass does."""
    experts = routed(0, 9)
    path = write_tokens(tmp_path, 0, [prefill(1, experts)], IN_PLACE)
    content = torch.load(path, weights_only=True)
    content["records"][0]["topk_ids_of_layer"] = content["records"][0]["topk_ids_of_layer"][:, :6].clone()
    torch.save(content, path)
    assert tokens_of(opened(without_counts(path)))["position_T"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_narrow_record_is_widened_to_the_models_top_k(tmp_path: Path) -> None:
    """A router may choose fewer; the header says how many there can be."""
    experts = routed(0, 9)
    path = write_tokens(tmp_path, 0, [prefill(1, experts)], IN_PLACE)
    changed(path, topk_ids_of_layer=torch.from_numpy(experts.astype(np.int32)))
    topk_LTK = tokens_of(opened(path, model=shape(LAYERS, EXPERTS, top_k=6)))["topk_LTK"]
    np.testing.assert_array_equal(topk_LTK[:, :, :TOP_K], experts)
    assert (topk_LTK[:, :, TOP_K:] == NO_EXPERT).all()
    assert topk_LTK.shape[2] == 6


def test_more_experts_per_token_than_the_model_has_are_refused(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, 0, [prefill(1, routed(0, 9))], IN_PLACE)
    assert opened(path, model=shape(LAYERS, EXPERTS, top_k=6)).header.top_k == 6
    with pytest.raises(InputsDisagree, match="top-k 2"):
        opened(path, model=shape(LAYERS, EXPERTS, top_k=2))


def test_files_of_two_modes_are_no_recording(tmp_path: Path) -> None:
    write_tokens(tmp_path, 0, [prefill(1, routed(0, 9))], IN_PLACE)
    write_counts(tmp_path, 1, [count(routed(0, 9), EXPERTS)], IN_PLACE)
    with pytest.raises(InputsDisagree, match="modes"):
        opened(tmp_path)
