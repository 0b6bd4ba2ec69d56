"""per_token dumps: slots of every token become experts, once each, with what is known of the token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from profiler.errors import MissingRanks
from profiler.readers.pt_archive import load_pt
from tests.case_files import case, case_folder
from tests.profiler.readers.sglang_files import (
    Ints,
    decode,
    idle,
    opened,
    prefill,
    random_layout,
    rng,
    to_slots,
    write_tokens,
)
from tests.profiler.readers.small_passes import EXPERTS, IN_PLACE, LAYERS, TOP_K, counted, routed, without_counts
from tests.profiler.recordings import DATA, codes, tokens_of

RECORDINGS = Path(__file__).parents[4] / "shared" / "tiny-moe" / "recordings"


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
