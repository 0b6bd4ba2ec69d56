"""per_pass dumps: rank files side by side, whose tokens they counted, and which ranks are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler.errors import BadCountType, InputsDisagree, MissingRanks, UnreadableDump
from profiler.trace import CountChunk
from tests.case_files import case, case_folder
from tests.profiler.readers.sglang_files import (
    Ints,
    count,
    opened,
    popularity,
    random_layout,
    rng,
    route,
    to_slots,
    trivial_layout,
    write_counts,
)
from tests.profiler.recordings import codes, counts_by_window, shape, total_LE

LAYERS, EXPERTS, TOP_K = 3, 16, 4


def routed_passes(seed: int, passes: int, *, tokens: int = 40) -> list[Ints]:
    generator = rng(seed)
    popular_LE = popularity(rng(1), layers=LAYERS, experts=EXPERTS)  # the same for all, as in one workload
    return [route(generator, popular_LE, tokens=tokens, top_k=TOP_K) for _ in range(passes)]


def write_ranks(folder: Path, by_rank: dict[int, list[Ints]], layout_LP: Ints, **more: Any) -> None:
    for rank, passes in by_rank.items():
        generator = rng(rank)
        slots = [count(to_slots(generator, experts, layout_LP), layout_LP.shape[1]) for experts in passes]
        write_counts(folder, rank, slots, layout_LP, **more)


def experts_of(by_rank: dict[int, list[Ints]]) -> Ints:
    """Return what must be read, [L, S, E]."""
    return np.stack([sum(count(experts, EXPERTS) for experts in passes) for passes in by_rank.values()], axis=1)


# --- missing ranks --------------------------------------------------------------------------------------------------


def test_the_missing_rank_of_the_case_is_named() -> None:
    params, oracle = case("P18")["params"], case("P18")["expect"]["oracle"]
    reader = opened(case_folder("P18"), expected_ranks=params["ep_size"])
    assert codes(reader.notices) == ["MISSING_RANKS"]
    assert reader.facts()["missing_ranks"] == oracle["missing"]
    assert total_LE(reader).tolist() == [[6, 0, 0, 0]]  # it can be looked at
    with pytest.raises(MissingRanks, match="rank 1") as caught:
        reader.require_complete()
    assert caught.value.code == "MISSING_RANKS"
    partial = opened(case_folder("P18"), expected_ranks=2, allow_partial=True)
    partial.require_complete()
    assert codes(partial.notices) == ["MISSING_RANKS"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(present=st.sets(st.integers(0, 5), min_size=1), expected=st.none() | st.integers(6, 8))
def test_every_rank_below_the_highest_or_the_expected_must_have_a_file(
    tmp_path: Path, present: set[int], expected: int | None
) -> None:
    for old in tmp_path.glob("*.pt"):
        old.unlink()
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    write_ranks(tmp_path, {rank: routed_passes(rank, 2) for rank in present}, layout_LP)
    reader = opened(tmp_path, expected_ranks=expected)
    missing = sorted(set(range(expected or max(present) + 1)) - present)
    assert reader.facts()["missing_ranks"] == missing
    assert ("MISSING_RANKS" in codes(reader.notices)) == bool(missing)
    # With ranks missing the sources that are there would stand for all: sources are then unknown.
    assert reader.header.source_ranks == (len(present) if len(present) > 1 and not missing else None)


def test_records_that_name_the_group_size_show_missing_ranks(tmp_path: Path) -> None:
    """DeepEP's normal mode leaves a count per rank in each record."""
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    path = write_counts(tmp_path, 0, [count(routed_passes(0, 1)[0], EXPERTS)], layout_LP)
    content = torch.load(path, weights_only=True)
    content["records"][0]["misc_objects"] = [{"layer_id": 0, "num_tokens_per_rank": [3, 4, 1, 0]}]
    torch.save(content, path)
    assert opened(path).facts()["missing_ranks"] == [1, 2, 3]


def test_a_rank_no_cluster_has_is_refused(tmp_path: Path) -> None:
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    write_ranks(tmp_path, {10**9: routed_passes(0, 1)}, layout_LP)
    with pytest.raises(InputsDisagree, match="rank 1000000000"):
        opened(tmp_path)


def test_more_ranks_than_expected_and_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    write_ranks(tmp_path, {0: routed_passes(0, 1), 3: routed_passes(3, 1)}, layout_LP)
    with pytest.raises(InputsDisagree, match="rank 3"):
        opened(tmp_path, expected_ranks=2)


# --- whose tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("redundant", [0, 8])
def test_ranks_with_tokens_of_their_own_are_sources(tmp_path: Path, redundant: int) -> None:
    layout_LP = random_layout(rng(5), layers=LAYERS, experts=EXPERTS, redundant=redundant)
    by_rank = {rank: routed_passes(10 + rank, 5) for rank in range(4)}
    write_ranks(tmp_path, by_rank, layout_LP)
    reader = opened(tmp_path)
    assert reader.header.source_ranks == 4
    assert reader.facts()["counted_by"] == "source"
    assert reader.notices == ()
    (counts_LSE,) = counts_by_window(reader).values()
    np.testing.assert_array_equal(counts_LSE, experts_of(by_rank))
    chunks = [chunk for chunk in reader.chunks() if isinstance(chunk, CountChunk)]
    assert [chunk.steps for chunk in chunks] == [1] * 5


@pytest.mark.parametrize("redundant", [0, 8])
def test_ranks_that_all_count_every_token_are_read_once(tmp_path: Path, redundant: int) -> None:
    """They may send a token to different replicas, so it is the experts that are equal, not the slots."""
    layout_LP = random_layout(rng(5), layers=LAYERS, experts=EXPERTS, redundant=redundant)
    passes = routed_passes(0, 4)
    write_ranks(tmp_path, {rank: passes for rank in range(3)}, layout_LP)
    reader = opened(tmp_path)
    assert reader.header.source_ranks is None
    assert codes(reader.notices) == ["SOURCES_REPEATED"]
    np.testing.assert_array_equal(total_LE(reader), experts_of({0: passes})[:, 0])


def test_one_token_more_on_one_rank_makes_them_sources(tmp_path: Path) -> None:
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    passes = routed_passes(0, 4)
    write_ranks(tmp_path, {0: passes, 1: [*passes[:3], passes[3][:, 1:]]}, layout_LP)
    assert opened(tmp_path).facts()["counted_by"] == "source"


@pytest.mark.parametrize("redundant", [0, 8])
def test_ranks_that_count_what_arrives_are_added_up(tmp_path: Path, redundant: int) -> None:
    """Low-latency all-to-all: rank r counts its own slots, filled by the tokens of all."""
    layout_LP = random_layout(rng(5), layers=LAYERS, experts=EXPERTS, redundant=redundant)
    slots, gpus = layout_LP.shape[1], 4
    passes = routed_passes(0, 4)
    counts = [count(to_slots(rng(2), experts, layout_LP), slots) for experts in passes]
    for rank in range(gpus):
        own_P = np.arange(slots) // (slots // gpus) == rank
        write_counts(tmp_path, rank, [counts_LP * own_P for counts_LP in counts], layout_LP)
    reader = opened(tmp_path)
    assert codes(reader.notices) == ["SOURCES_UNKNOWN"]
    assert reader.header.source_ranks is None
    np.testing.assert_array_equal(total_LE(reader), experts_of({0: passes})[:, 0])


def test_a_single_file_has_no_sources(tmp_path: Path) -> None:
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    write_ranks(tmp_path, {0: routed_passes(0, 2)}, layout_LP)
    assert opened(tmp_path).header.source_ranks is None
    assert opened(tmp_path).notices == ()


# --- passes ---------------------------------------------------------------------------------------------------------


def test_passes_that_not_all_ranks_recorded_are_noticed_and_kept(tmp_path: Path) -> None:
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    by_rank = {0: routed_passes(0, 5), 1: routed_passes(1, 3)}
    write_ranks(tmp_path, {0: by_rank[0]}, layout_LP, first_pass=7)
    write_ranks(tmp_path, {1: by_rank[1]}, layout_LP, first_pass=9)
    reader = opened(tmp_path)
    assert codes(reader.notices) == ["PASSES_NOT_ALIGNED"]
    assert "2 of 5 passes" in reader.notices[0].detail
    (counts_LSE,) = counts_by_window(reader).values()
    np.testing.assert_array_equal(counts_LSE, experts_of(by_rank))


def test_restarted_pass_ids_and_micro_batches_lose_nothing(tmp_path: Path) -> None:
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    passes = routed_passes(0, 6)
    path = write_counts(tmp_path, 0, [count(experts, EXPERTS) for experts in passes], layout_LP)
    content = torch.load(path, weights_only=True)
    for record, pass_id in zip(content["records"], [4, 4, 5, 1, 2, 3], strict=True):
        record["forward_pass_id"] = pass_id
    torch.save(content, path)
    reader = opened(path)
    assert codes(reader.notices) == ["PASS_IDS_RESTARTED"]
    assert reader.facts()["passes"] == 5
    np.testing.assert_array_equal(total_LE(reader), experts_of({0: passes})[:, 0])


def test_a_recording_without_passes_or_traffic_keeps_its_shape(tmp_path: Path) -> None:
    layout_LP = random_layout(rng(5), layers=LAYERS, experts=EXPERTS, redundant=8)
    empty = np.zeros((LAYERS, EXPERTS + 8), dtype=np.int64)
    for counts in ([], [empty, empty]):
        reader = opened(write_counts(tmp_path, 0, counts, layout_LP))
        (chunk,) = reader.chunks()
        assert isinstance(chunk, CountChunk)
        assert chunk.tokens_LSE.shape == (LAYERS, 1, EXPERTS)
        assert (int(chunk.tokens_LSE.sum()), chunk.steps) == (0, 0)


def test_dense_layers_stay_and_draft_rows_go_by_the_model(tmp_path: Path) -> None:
    layout_LP = random_layout(rng(5), layers=LAYERS, experts=EXPERTS)
    passes = routed_passes(0, 2)
    counts = [count(to_slots(rng(), experts, layout_LP), EXPERTS) for experts in passes]
    for counts_LP in counts:
        counts_LP[0] = 0
    reader = opened(write_counts(tmp_path, 0, counts, layout_LP), model=shape(2, EXPERTS, dense=1, top_k=TOP_K))
    assert reader.header.layers == 2
    assert codes(reader.notices) == ["DRAFT_LAYERS_LEFT_OUT"]
    expected_LE = experts_of({0: passes})[:2, 0]
    expected_LE[0] = 0
    np.testing.assert_array_equal(total_LE(reader), expected_LE)


# --- what is refused ------------------------------------------------------------------------------------------------


def changed(path: Path, **record: Any) -> Path:
    content = torch.load(path, weights_only=True)
    content["records"][-1].update(record)
    content["records"][-1] = {key: value for key, value in content["records"][-1].items() if value is not ...}
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"global_physical_count": ...}, UnreadableDump),
        ({"global_physical_count": [[1, 2]]}, UnreadableDump),
        ({"global_physical_count": torch.ones(LAYERS, EXPERTS + 1, dtype=torch.int32)}, UnreadableDump),
        ({"global_physical_count": torch.ones(LAYERS + 1, EXPERTS, dtype=torch.int32)}, UnreadableDump),
        ({"global_physical_count": torch.full((LAYERS, EXPERTS), 0.5)}, BadCountType),
        ({"forward_pass_id": "7"}, UnreadableDump),
        ({"forward_pass_id": ...}, UnreadableDump),
        ({"forward_pass_id": -1}, UnreadableDump),
        ({"rank": 5}, UnreadableDump),
        ({"rank": None}, UnreadableDump),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_damaged_records_are_named(tmp_path: Path, record: dict[str, Any], error: type[Exception]) -> None:
    layout_LP = trivial_layout(layers=LAYERS, experts=EXPERTS)
    path = write_counts(tmp_path, 0, [count(experts, EXPERTS) for experts in routed_passes(0, 3)], layout_LP)
    with pytest.raises(error):
        opened(changed(path, **record))


@pytest.mark.parametrize(
    "layout",
    [
        torch.zeros(LAYERS, EXPERTS),
        torch.zeros(LAYERS, EXPERTS, dtype=torch.int64) - 1,
        torch.zeros(LAYERS + 1, EXPERTS, dtype=torch.int64),
        torch.arange(LAYERS * EXPERTS).reshape(LAYERS, EXPERTS),
        torch.arange(EXPERTS).repeat(LAYERS, 1) - 2**32 * (torch.arange(EXPERTS) == 3),
        [[0, 1]],
        None,
    ],
    ids=["floats", "negative", "too many layers", "experts without a slot", "beyond 32 bits", "a list", "missing"],
)
def test_damaged_layouts_are_refused(tmp_path: Path, layout: Any) -> None:
    path = write_counts(tmp_path, 0, [count(routed_passes(0, 1)[0], EXPERTS)], trivial_layout(layers=3, experts=16))
    content = torch.load(path, weights_only=True)
    content["last_physical_to_logical_map"] = layout
    torch.save(content, path)
    with pytest.raises(UnreadableDump):
        opened(path)


def test_a_file_without_a_layout_is_read_when_its_slots_are_the_experts(tmp_path: Path) -> None:
    passes = routed_passes(0, 2)
    path = write_counts(
        tmp_path, 0, [count(experts, EXPERTS) for experts in passes], trivial_layout(layers=3, experts=16)
    )
    content = torch.load(path, weights_only=True)
    del content["last_physical_to_logical_map"]
    torch.save(content, path)
    np.testing.assert_array_equal(total_LE(opened(path, experts=EXPERTS)), experts_of({0: passes})[:, 0])
    with pytest.raises(UnreadableDump, match="16 slots for 12 experts"):
        opened(path, experts=12)


def test_another_number_of_experts_than_given_is_refused(tmp_path: Path) -> None:
    path = write_counts(tmp_path, 0, [count(routed_passes(0, 1)[0], EXPERTS)], trivial_layout(layers=3, experts=16))
    assert opened(path, experts=16).header.experts == 16
    with pytest.raises(InputsDisagree, match="16 experts, 32 were given"):
        opened(path, experts=32)
