"""A layout that changed while recording is found or accounted for, and a recording without a change is let through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placement.errors import CodedError
from profiler.errors import BadJson, InputsDisagree, MapChanged
from tests.case_files import case, case_folder
from tests.profiler.readers.sglang_files import (
    Ints,
    count,
    decode,
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
from tests.profiler.recordings import DATA, codes, tokens_of, total_LE

LAYERS, EXPERTS, TOP_K, PASSES, TOKENS = 4, 32, 4, 12, 200
REDUNDANT = pytest.mark.parametrize("redundant", [0, 8])


def layouts(seed: int, redundant: int) -> tuple[Ints, Ints, Ints]:
    """Return two random layouts and the one an engine starts with."""
    generator = rng(seed)
    sizes = {"layers": LAYERS, "experts": EXPERTS, "redundant": redundant}
    return random_layout(generator, **sizes), random_layout(generator, **sizes), trivial_layout(**sizes)


def routed(seed: int, passes: int, *, workload: int = 0) -> list[Ints]:
    generator = rng(100 + seed)
    popular_LE = popularity(rng(workload), layers=LAYERS, experts=EXPERTS)
    return [route(generator, popular_LE, tokens=TOKENS, top_k=TOP_K) for _ in range(passes)]


def write_change(
    folder: Path, passes: list[Ints], before_LP: Ints, after_LP: Ints, *, change_at: int, per_token: bool = False
) -> Path:
    """Record passes of which those from ``change_at`` on run with the later layout, the only one in the dump."""
    slots = [to_slots(rng(i), e, before_LP if i < change_at else after_LP) for i, e in enumerate(passes)]
    if per_token:
        return write_tokens(folder, 0, [prefill(i + 1, ids) for i, ids in enumerate(slots)], after_LP)
    return write_counts(folder, 0, [count(ids, after_LP.shape[1]) for ids in slots], after_LP)


def write_history(folder: Path, *entries: tuple[int, Ints]) -> Path:
    path = folder / "history.json"
    rows = [{"from_pass": at, "physical_to_logical_map": layout_LP.tolist()} for at, layout_LP in entries]
    path.write_text(json.dumps(rows))
    return path


# --- the case -------------------------------------------------------------------------------------------------------


def test_the_case_is_refused_without_a_history() -> None:
    """Also with the history beside it: which file holds the layouts is for the caller to say."""
    path = case_folder("P19") / "expert_distribution_recorder_10.0_0.pt"
    for given in (path, path.parent):
        with pytest.raises(MapChanged) as caught:
            opened(given)
        assert caught.value.code == "MAP_CHANGED"
        assert caught.value.remedies


def test_the_case_is_read_rightly_with_its_history() -> None:
    folder = case_folder("P19")
    reader = opened(folder, map_history=folder / "map_history.json")
    assert total_LE(reader).tolist() == case("P19")["expect"]["oracle"]["right"]
    assert reader.facts()["layouts"] == 2


# --- found ----------------------------------------------------------------------------------------------------------


@REDUNDANT
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("change_at", [1, 5, PASSES - 1])
def test_a_first_push_is_found(tmp_path: Path, redundant: int, per_token: bool, change_at: int) -> None:
    """From the layout an engine starts with to any other, early or late in the recording."""
    _, after_LP, start_LP = layouts(3, redundant)
    path = write_change(tmp_path, routed(1, PASSES), start_LP, after_LP, change_at=change_at, per_token=per_token)
    with pytest.raises(MapChanged):
        opened(path)


@pytest.mark.parametrize("change_at", [4, 8])
def test_a_later_push_without_replicas_is_found_in_counts(tmp_path: Path, change_at: int) -> None:
    before_LP, after_LP, start_LP = layouts(3, 0)
    for one, other in ((before_LP, after_LP), (before_LP, start_LP)):  # to another layout, and back to the first
        with pytest.raises(MapChanged, match="same loads"):
            opened(write_change(tmp_path, routed(1, PASSES), one, other, change_at=change_at))


def test_any_push_with_replicas_is_found_in_tokens(tmp_path: Path) -> None:
    """Read with the wrong layout, tokens have an expert twice, which a router never chooses."""
    before_LP, after_LP, _ = layouts(3, 8)
    path = write_change(tmp_path, routed(1, PASSES), before_LP, after_LP, change_at=6, per_token=True)
    with pytest.raises(MapChanged, match="twice"):
        opened(path)


def first_token_passes(layout_of_pass: list[Ints], *, other_way: set[int] = frozenset()) -> list[Any]:
    """Return passes of short requests with three first tokens, which go the same way under every layout."""
    fixed = {
        token: route(rng(token), popularity(rng(9), layers=LAYERS, experts=EXPERTS), tokens=1, top_k=TOP_K)
        for token in (7, 8, 9)
    }
    passes = []
    for index, layout_LP in enumerate(layout_of_pass):
        token = 7 + index % 3
        experts = fixed[token] if index not in other_way else (fixed[token] + 5) % EXPERTS
        more = route(rng(50 + index), popularity(rng(index), layers=LAYERS, experts=EXPERTS), tokens=4, top_k=TOP_K)
        ids = to_slots(rng(index), np.concatenate([experts, more], axis=1), layout_LP)
        passes.append(prefill(index + 1, ids, input_ids=[token, 1, 2, 3, 4]))
    return passes


def test_first_tokens_that_go_another_way_from_a_pass_on_show_any_push(tmp_path: Path) -> None:
    """Every pass is another workload here and no expert has a replica: counts and repeats say nothing."""
    before_LP, after_LP, _ = layouts(3, 0)
    changed = first_token_passes([before_LP] * 6 + [after_LP] * 6)
    with pytest.raises(MapChanged, match=r"from pass [67] on the same first tokens"):
        opened(write_tokens(tmp_path, 0, changed, after_LP))
    same = first_token_passes([after_LP] * 12)
    assert opened(write_tokens(tmp_path, 0, same, after_LP)).notices == ()


def test_first_tokens_that_go_back_and_forth_are_no_push(tmp_path: Path) -> None:
    """An adapter or an image can stand behind a token; a layout does not come and go with every request."""
    _, after_LP, _ = layouts(3, 0)
    passes = first_token_passes([after_LP] * 12, other_way={3, 4, 9})
    assert opened(write_tokens(tmp_path, 0, passes, after_LP)).notices == ()


def test_ranks_that_were_dumped_with_different_layouts_are_refused(tmp_path: Path) -> None:
    one_LP, other_LP, _ = layouts(3, 8)
    for rank, layout_LP in enumerate((one_LP, other_LP)):
        write_counts(tmp_path, rank, [count(to_slots(rng(), routed(rank, 1)[0], layout_LP), 40)], layout_LP)
    with pytest.raises(MapChanged, match="rank 1"):
        opened(tmp_path)


# --- let through ----------------------------------------------------------------------------------------------------


@REDUNDANT
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("started", [True, False])
def test_one_layout_all_along_is_no_change(tmp_path: Path, redundant: int, per_token: bool, started: bool) -> None:
    layout_LP = layouts(3, redundant)[2 if started else 0]
    passes = routed(1, PASSES)
    reader = opened(write_change(tmp_path, passes, layout_LP, layout_LP, change_at=0, per_token=per_token))
    assert reader.notices == ()


@REDUNDANT
@pytest.mark.parametrize("per_token", [False, True])
def test_another_workload_from_a_pass_on_is_no_change(tmp_path: Path, redundant: int, per_token: bool) -> None:
    layout_LP = layouts(3, redundant)[0]
    for seed in range(5):
        passes = [*routed(seed, 6, workload=seed), *routed(seed, 6, workload=seed + 50)]
        path = write_change(tmp_path, passes, layout_LP, layout_LP, change_at=0, per_token=per_token)
        assert opened(path).notices == ()


def test_a_real_change_of_workload_is_no_change_of_layout(tmp_path: Path) -> None:
    """Two halves of a real recording whose kinds of text differ, under a layout that was never the engine's first."""
    topk_LTK = np.load(DATA / "tiny_mixed.npz")["topk"].astype(np.int64)
    layout_LP = random_layout(rng(4), layers=6, experts=32, redundant=8)
    cuts = np.array_split(np.arange(topk_LTK.shape[1]), 20)
    counts = [count(to_slots(rng(i), topk_LTK[:, rows], layout_LP), 40) for i, rows in enumerate(cuts)]
    assert opened(write_counts(tmp_path, 0, counts, layout_LP)).notices == ()
    start_LP = trivial_layout(layers=6, experts=32, redundant=8)
    counts[:10] = [count(to_slots(rng(i), topk_LTK[:, rows], start_LP), 40) for i, rows in enumerate(cuts[:10])]
    with pytest.raises(MapChanged):  # the same recording across a push
        opened(write_counts(tmp_path, 0, counts, layout_LP))


def test_too_little_to_tell_is_let_through(tmp_path: Path) -> None:
    layout_LP = layouts(3, 0)[0]
    counts = [count(to_slots(rng(), experts[:, :3], layout_LP), EXPERTS) for experts in routed(1, 1)]
    assert opened(write_counts(tmp_path, 0, counts, layout_LP)).notices == ()


def test_rows_that_no_router_made_say_nothing_about_layouts(tmp_path: Path) -> None:
    """Slots at random, with repeats: padding, or made up."""
    layout_LP = layouts(3, 8)[0]
    ids = rng().integers(0, 40, size=(LAYERS, 300, TOP_K))
    ids[:, :200, 1] = ids[:, :200, 0]
    assert opened(write_tokens(tmp_path, 0, [prefill(1, ids)], layout_LP)).header.top_k == TOP_K


# --- accounted for --------------------------------------------------------------------------------------------------


@REDUNDANT
@pytest.mark.parametrize("per_token", [False, True])
def test_a_history_splits_the_recording(tmp_path: Path, redundant: int, per_token: bool) -> None:
    before_LP, after_LP, _ = layouts(3, redundant)
    passes = routed(1, PASSES)
    path = write_change(tmp_path, passes, before_LP, after_LP, change_at=5, per_token=per_token)
    reader = opened(path, map_history=write_history(tmp_path, (1, before_LP), (6, after_LP)))
    if per_token:
        found = np.sort(tokens_of(reader)["topk_LTK"], axis=-1)
        np.testing.assert_array_equal(found, np.sort(np.concatenate(passes, axis=1), axis=-1))
    else:
        np.testing.assert_array_equal(total_LE(reader), sum(count(experts, EXPERTS) for experts in passes))


def test_a_history_of_one_entry_says_that_there_was_no_change(tmp_path: Path) -> None:
    before_LP, after_LP, _ = layouts(3, 0)
    path = write_change(tmp_path, routed(1, PASSES), before_LP, after_LP, change_at=6)
    assert opened(path, map_history=write_history(tmp_path, (0, after_LP))).facts()["layouts"] == 1


def test_a_history_that_does_not_explain_the_tokens_is_refused(tmp_path: Path) -> None:
    before_LP, after_LP, _ = layouts(3, 8)
    path = write_change(tmp_path, routed(1, PASSES), before_LP, after_LP, change_at=6, per_token=True)
    with pytest.raises(MapChanged, match="twice"):
        opened(path, map_history=write_history(tmp_path, (1, after_LP)))


def test_histories_that_are_incomplete_or_no_histories_are_refused(tmp_path: Path) -> None:
    before_LP, after_LP, start_LP = layouts(3, 0)
    path = write_change(tmp_path, routed(1, 4), after_LP, after_LP, change_at=0)
    wrong: list[tuple[type[CodedError], Any]] = [
        (MapChanged, [{"from_pass": 1, "physical_to_logical_map": before_LP.tolist()}]),
        (MapChanged, [{"from_pass": 2, "physical_to_logical_map": after_LP.tolist()}]),
        (InputsDisagree, [{"from_pass": 0, "physical_to_logical_map": after_LP[:2].tolist()}]),
        (BadJson, [{"from_pass": "0", "physical_to_logical_map": after_LP.tolist()}]),
        (BadJson, [{"from_pass": n, "physical_to_logical_map": start_LP.tolist()} for n in (5, 5)]),
        (BadJson, []),
        (BadJson, {"from_pass": 0}),
        (CodedError, [{"from_pass": 0}]),
        (CodedError, [{"from_pass": 0, "physical_to_logical_map": (after_LP + 1).tolist()}]),
    ]
    for error, content in wrong:
        history = tmp_path / "wrong.json"
        history.write_text(json.dumps(content))
        with pytest.raises(error):
            opened(path, map_history=history)


# --- ids that are experts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_token", [False, True])
def test_ids_that_never_reach_the_redundant_slots_are_experts(tmp_path: Path, per_token: bool) -> None:
    """An engine without a dispatch algorithm records experts, whatever its layout says."""
    layout_LP = layouts(3, 8)[0]
    passes = routed(1, PASSES)
    if per_token:
        path = write_tokens(tmp_path, 0, [prefill(i, ids) for i, ids in enumerate(passes)], layout_LP)
    else:
        path = write_counts(tmp_path, 0, [count(ids, 40) for ids in passes], layout_LP)
    reader = opened(path)
    assert codes(reader.notices) == ["IDS_ARE_EXPERTS"]
    if per_token:
        np.testing.assert_array_equal(tokens_of(reader)["topk_LTK"], np.concatenate(passes, axis=1))
    else:
        np.testing.assert_array_equal(total_LE(reader), sum(count(experts, EXPERTS) for experts in passes))


def test_a_few_tokens_that_miss_the_redundant_slots_prove_nothing(tmp_path: Path) -> None:
    layout_LP = layouts(3, 8)[0]
    ids = np.arange(8).reshape(1, 2, 4).repeat(LAYERS, axis=0)
    assert opened(write_tokens(tmp_path, 0, [decode(1, ids, [3, 4])], layout_LP)).notices == ()


def test_layouts_of_different_widths_do_not_mix(tmp_path: Path) -> None:
    path = write_counts(tmp_path, 0, [count(routed(1, 1)[0], EXPERTS)], layouts(3, 0)[2])
    other = write_counts(tmp_path, 1, [count(routed(2, 1)[0], EXPERTS + 8)], layouts(3, 8)[2])
    assert torch.load(path, weights_only=True).keys() == torch.load(other, weights_only=True).keys()
    with pytest.raises(InputsDisagree, match="different shapes"):
        opened(tmp_path)
