"""per_token dumps: slots of every token become experts, once each, with what is known of the token."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler.errors import InputsDisagree, MissingRanks, UnreadableDump
from profiler.readers import sglang_per_token, sglang_survey
from profiler.readers.pt_archive import load_pt
from profiler.trace import NO_EXPERT, TokenChunk
from tests.case_files import case, case_folder
from tests.profiler.readers.sglang_files import (
    Ints,
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
from tests.profiler.recordings import DATA, codes, shape, tokens_of

RECORDINGS = Path(__file__).parents[4] / "shared" / "tiny-moe" / "recordings"
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


# --- the cases ------------------------------------------------------------------------------------------------------


def test_padding_of_the_case_is_left_out_and_its_top_k_found() -> None:
    reader = opened(next(case_folder("P06").glob("*.pt")))
    oracle = case("P06")["expect"]["oracle"]
    tokens = tokens_of(reader)
    assert reader.header.top_k == oracle["top_k"] == tokens["topk_LTK"].shape[2]
    assert counted(tokens["topk_LTK"], 8) == oracle["counts"]
    assert tokens["position_T"].tolist() == [0, 1, 2]
    assert tokens["phase_T"].tolist() == [1, 1, 1]
    assert reader.notices == ()


@pytest.mark.parametrize("top_k", range(1, 9))
def test_any_top_k_up_to_the_recorders_width_is_found(tmp_path: Path, top_k: int) -> None:
    experts = routed(0, 5, top_k=top_k)
    reader = opened(write_tokens(tmp_path, 0, [prefill(1, experts)], IN_PLACE))
    assert reader.header.top_k == top_k
    np.testing.assert_array_equal(tokens_of(reader)["topk_LTK"], experts)


def test_shared_experts_of_the_case_are_counted_apart() -> None:
    params, oracle = case("P10")["params"], case("P10")["expect"]["oracle"]
    for options in ({}, {"experts": params["num_experts"]}):
        reader = opened(case_folder("P10") / "dump.pt", **options)
        assert codes(reader.notices) == [case("P10")["expect"]["error_code"]]
        assert reader.header.experts == params["num_experts"]
        assert counted(tokens_of(reader)["topk_LTK"], 8) == oracle["routed"]
        assert reader.facts()["shared_expert_tokens"] == oracle["shared"]


@pytest.mark.parametrize("column", [0, 2, TOP_K])
@pytest.mark.parametrize("shared_ids", [[0], [0, 1], [1000]])
@pytest.mark.parametrize("redundant", [0, 8])
def test_shared_experts_in_any_column_and_number_are_left_out(
    tmp_path: Path, column: int, shared_ids: list[int], redundant: int
) -> None:
    layout_LP = random_layout(rng(2), layers=LAYERS, experts=EXPERTS, redundant=redundant)
    experts = routed(0, 30)
    ids = to_slots(rng(), experts, layout_LP)
    for offset in shared_ids:
        ids = np.insert(ids, column, layout_LP.shape[1] + offset, axis=2)
    path = write_tokens(tmp_path, 0, [prefill(1, np.zeros((LAYERS, 30, 8), dtype=np.int64))], layout_LP)
    content = torch.load(path, weights_only=True)
    content["records"][0]["topk_ids_of_layer"][:] = -1
    content["records"][0]["topk_ids_of_layer"][:, :, : ids.shape[2]] = torch.from_numpy(ids)
    torch.save(content, path)
    reader = opened(without_counts(path))
    assert reader.header.top_k == TOP_K
    assert reader.facts()["shared_expert_tokens"] == [30 * len(shared_ids)] * LAYERS
    assert codes(reader.notices) == ["SHARED_EXPERT_IDS"]
    np.testing.assert_array_equal(tokens_of(reader)["topk_LTK"], experts)


def test_old_records_of_the_case_are_counted_from_their_ids() -> None:
    reader = opened(case_folder("P11") / "dump.pt")
    assert counted(tokens_of(reader)["topk_LTK"], 8) == case("P11")["expect"]["oracle"]["counts"]
    assert reader.notices == ()


def test_records_with_and_without_counts_read_the_same(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, 0, [prefill(1, routed(0, 9)), decode(2, routed(1, 1), [9])], IN_PLACE)
    before = tokens_of(opened(path))
    after = tokens_of(opened(without_counts(path)))
    for name, column in before.items():
        np.testing.assert_array_equal(column, after[name])


def test_counts_that_contradict_the_ids_are_noticed(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, 0, [prefill(1, routed(0, 9))], IN_PLACE)
    content = torch.load(path, weights_only=True)
    content["records"][0]["global_physical_count"][1, 3] += 1
    torch.save(content, path)
    assert codes(opened(path).notices) == ["COUNTS_DISAGREE"]


# --- a real engine --------------------------------------------------------------------------------------------------


def engine_answers() -> dict[tuple[int, int], bytes]:
    """Return the experts that the engine gave the client, by request and position."""
    with np.load(DATA / "tiny_affinity.npz") as trace:
        rows_TLK = np.sort(trace["topk"].transpose(1, 0, 2).astype(np.uint16), axis=-1)
        keys = zip(trace["request_id"].tolist(), trace["position"].tolist(), strict=True)
        return {key: row_LK.tobytes() for key, row_LK in zip(keys, rows_TLK, strict=True)}


def test_a_real_dump_holds_what_the_engine_answered() -> None:
    """Two ranks without an all-to-all: rank 1's rows are rank 0's, except in the pass that rank 0 sat out."""
    reader = opened(DATA / "sglang" / "per_token")
    tokens = tokens_of(reader)
    assert (reader.header.layers, reader.header.experts, reader.header.top_k) == (6, 32, 4)
    assert codes(reader.notices) == ["SOURCES_REPEATED"]
    assert reader.header.source_ranks is None
    assert set(tokens["source_T"].tolist()) == {-1}
    assert (reader.facts()["tokens"], reader.facts()["tokens_left_out"]) == (533, 197)
    answers = engine_answers()
    requests = {0: 0, 1: 1, 2: 16}  # in the order of their prefill passes; 16 ran on rank 1
    rows_TLK = np.sort(tokens["topk_LTK"].transpose(1, 0, 2), axis=-1)
    compared = 0
    for request, position, row_LK in zip(tokens["request_id_T"], tokens["position_T"], rows_TLK, strict=True):
        answer = answers.get((requests[int(request)], int(position)))
        if answer is not None:  # the last token of a request is not answered for
            assert row_LK.tobytes() == answer
            compared += 1
    assert compared == 531


def test_a_real_requests_tokens_come_in_order() -> None:
    tokens = tokens_of(opened(DATA / "sglang" / "per_token"))
    for request, prompt_tokens, rows in ((0, 233, 249), (1, 119, 135), (2, 149, 149)):
        mine_T = tokens["request_id_T"] == request
        assert tokens["position_T"][mine_T].tolist() == list(range(rows))
        assert tokens["phase_T"][mine_T].tolist() == [1] * prompt_tokens + [2] * (rows - prompt_tokens)
        assert (np.diff(tokens["step_T"][mine_T]) >= 0).all()


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the full recordings are not beside the project")
def test_all_68_shared_passes_of_the_full_recording_are_repeats() -> None:
    folder = RECORDINGS / "per_token"
    reader = opened(folder)
    assert codes(reader.notices) == ["SOURCES_REPEATED"]
    first, second = (load_pt(path)["records"] for path in sorted(folder.glob("*.pt")))
    pairs = [(a["topk_ids_of_layer"], b["topk_ids_of_layer"]) for a, b in zip(first, second, strict=True)]
    shared = [(a, b, min(a.shape[1], b.shape[1])) for a, b in pairs if min(a.shape[1], b.shape[1])]
    assert len(shared) == 68
    assert all(np.array_equal(a[:, :rows], b[:, :rows]) for a, b, rows in shared)
    assert reader.facts()["tokens"] == sum(a.shape[1] for a, _ in pairs) + 149 + 465  # rank 1 alone in two passes


# --- ranks ----------------------------------------------------------------------------------------------------------


def by_source(tokens: dict[str, Any]) -> dict[int, Any]:
    return {int(rank): tokens["topk_LTK"][:, tokens["source_T"] == rank] for rank in np.unique(tokens["source_T"])}


@pytest.mark.parametrize("redundant", [0, 8])
def test_ranks_with_rows_of_their_own_are_sources(tmp_path: Path, redundant: int) -> None:
    layout_LP = random_layout(rng(2), layers=LAYERS, experts=EXPERTS, redundant=redundant)
    own = {rank: [routed(10 * rank + step, 20 + rank) for step in range(3)] for rank in range(3)}
    for rank, passes in own.items():
        records = [prefill(step, to_slots(rng(rank), experts, layout_LP)) for step, experts in enumerate(passes)]
        write_tokens(tmp_path, rank, records, layout_LP)
    reader = opened(tmp_path)
    assert reader.header.source_ranks == 3
    assert reader.notices == ()
    tokens = tokens_of(reader)
    assert np.unique(tokens["step_T"]).tolist() == [0, 1, 2]
    assert (np.diff(tokens["step_T"]) >= 0).all()
    for rank, topk_LTK in by_source(tokens).items():
        np.testing.assert_array_equal(topk_LTK, np.concatenate(own[rank], axis=1))
    requests = {rank: set(tokens["request_id_T"][tokens["source_T"] == rank]) for rank in own}
    assert not requests[0] & requests[1]
    assert sum(map(len, requests.values())) == 9


def write_gathered(folder: Path, lengths: list[list[int]], layout_LP: Ints) -> list[list[Ints]]:
    """Write what ranks record that all route the gathered batch: as many of its first rows as they had tokens."""
    own: list[list[Ints]] = []
    for step, row in enumerate(lengths):
        own.append([routed(100 * step + rank, tokens) for rank, tokens in enumerate(row)])
    for rank in range(len(lengths[0])):
        records = []
        for step, row in enumerate(lengths):
            gathered = np.concatenate(own[step], axis=1)[:, : row[rank]]
            slots = to_slots(rng(rank), gathered, layout_LP)  # each picks replicas for itself
            records.append(prefill(step, slots) if row[rank] else idle(step, LAYERS))
        write_tokens(folder, rank, records, layout_LP)
    return own


@pytest.mark.parametrize("redundant", [0, 8])
def test_rows_of_the_gathered_batch_are_kept_once(tmp_path: Path, redundant: int) -> None:
    layout_LP = random_layout(rng(2), layers=LAYERS, experts=EXPERTS, redundant=redundant)
    own = write_gathered(tmp_path, [[20, 30, 10], [25, 5, 40], [0, 12, 9], [0, 0, 7]], layout_LP)
    reader = opened(tmp_path)
    assert codes(reader.notices) == ["SOURCES_REPEATED"]
    assert "64 of 158 rows" in reader.notices[0].detail
    kept = np.concatenate([own[0][0], own[1][0], own[2][1], own[3][2]], axis=1)
    np.testing.assert_array_equal(tokens_of(reader)["topk_LTK"], kept)


def test_ranks_of_one_attention_group_are_read_once(tmp_path: Path) -> None:
    """Tensor parallelism without data-parallel attention: every rank has the same tokens."""
    passes = [prefill(1, routed(0, 20)), decode(2, routed(1, 2), [20, 9])]
    for rank in range(4):
        write_tokens(tmp_path, rank, passes, IN_PLACE)
    reader = opened(tmp_path)
    assert codes(reader.notices) == ["SOURCES_REPEATED"]
    assert len(tokens_of(reader)["source_T"]) == 22


def test_rows_behind_an_idle_first_rank_in_decode_may_be_padding(tmp_path: Path) -> None:
    """Decode passes are padded to equal length, so a later rank then holds the first one's padding."""
    real = routed(0, 20)
    write_tokens(tmp_path, 0, [prefill(1, real), idle(2, LAYERS), idle(3, LAYERS)], IN_PLACE)
    padding = np.repeat(routed(7, 1), 4, axis=1)
    later = [prefill(1, real[:, :5]), decode(2, padding, [4, 5, 6, 7]), prefill(3, padding)]
    write_tokens(tmp_path, 1, later, IN_PLACE)
    np.testing.assert_array_equal(tokens_of(opened(tmp_path))["topk_LTK"], real)


def test_a_few_rows_in_common_are_no_repeats(tmp_path: Path) -> None:
    """Two ranks with one and the same system prompt, and questions of their own."""
    prompt = routed(0, 40)
    for rank in range(2):
        write_tokens(tmp_path, rank, [prefill(1, np.concatenate([prompt, routed(rank + 1, 60)], axis=1))], IN_PLACE)
    assert opened(tmp_path).header.source_ranks == 2


def test_rows_that_are_all_alike_prove_no_repeats(tmp_path: Path) -> None:
    alike = np.tile(np.arange(TOP_K), (LAYERS, 6, 1))
    for rank in range(2):
        write_tokens(tmp_path, rank, [prefill(1, alike)], IN_PLACE)
    assert opened(tmp_path).header.source_ranks == 2


def test_a_missing_rank_makes_sources_unknown(tmp_path: Path) -> None:
    for rank in (0, 2):
        write_tokens(tmp_path, rank, [prefill(1, routed(rank, 20))], IN_PLACE)
    reader = opened(tmp_path)
    assert codes(reader.notices) == ["MISSING_RANKS"]
    assert reader.header.source_ranks is None
    assert set(tokens_of(reader)["source_T"].tolist()) == {-1}
    with pytest.raises(MissingRanks):
        reader.require_complete()
    opened(tmp_path, allow_partial=True).require_complete()


def test_where_ranks_repeat_each_other_none_is_missing(tmp_path: Path) -> None:
    for rank in (0, 2):
        write_tokens(tmp_path, rank, [prefill(1, routed(0, 20))], IN_PLACE)
    reader = opened(tmp_path)
    reader.require_complete()
    assert codes(reader.notices) == ["SOURCES_REPEATED"]
    assert reader.facts()["missing_ranks"] == [1]


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
