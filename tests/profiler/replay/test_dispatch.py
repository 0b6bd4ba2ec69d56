"""The replay engine's dispatch against tables that SGLang's own functions made, and against its own rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.replay.dispatch import (
    ByRow,
    NearestDynamic,
    NearestStatic,
    Ranks,
    Unmapped,
    dispatcher_class,
    list_replicas,
)

GOLDEN_FILE = Path(__file__).parents[2] / "placement" / "dispatch" / "golden_tables.json"
GOLDEN = json.loads(GOLDEN_FILE.read_text())


@pytest.fixture(params=GOLDEN["cases"], ids=lambda case: case["name"])
def golden(request):
    return request.param


def ranks_of(golden: dict) -> Ranks:
    slots = len(golden["map"][0])
    return Ranks(golden["gpus"], golden["gpus"] // golden["nodes"], slots // golden["gpus"])


def every_expert_of_every_rank(golden: dict, *, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch in which each rank routes each expert ``tokens`` times: experts [L, T, 1] and sources [T]."""
    experts, gpus = golden["experts"], golden["gpus"]
    expert_T = np.tile(np.repeat(np.arange(experts), tokens), gpus)
    source_T = np.repeat(np.arange(gpus), experts * tokens)
    return np.broadcast_to(expert_T[None, :, None], (len(golden["map"]), len(expert_T), 1)), source_T


def dispatched(golden: dict, kind: type, *, tokens: int) -> np.ndarray:
    """Return the slots of :func:`every_expert_of_every_rank`, [layer, rank, expert, token]."""
    dispatcher = kind.for_map(
        np.array(golden["map"], dtype=np.int32), experts=golden["experts"], ranks=ranks_of(golden)
    )
    experts_LTK, source_T = every_expert_of_every_rank(golden, tokens=tokens)
    slots = dispatcher.slots_of(experts_LTK, source_T=source_T, random_picks=np.random.default_rng(0))
    return slots.reshape(len(golden["map"]), golden["gpus"], golden["experts"], tokens)


def test_golden_tables_cover_one_two_and_four_nodes():
    assert {case["nodes"] for case in GOLDEN["cases"]} == {1, 2, 4}


def test_static_goes_to_the_slot_of_every_ranks_own_table(golden):
    slots_LGET = dispatched(golden, NearestStatic, tokens=1)

    np.testing.assert_array_equal(slots_LGET[..., 0].transpose(1, 0, 2), golden["static"])


def test_dynamic_picks_among_exactly_the_candidates_of_every_rank(golden):
    slots_LGET = dispatched(golden, NearestDynamic, tokens=600)

    for rank, layers in enumerate(golden["candidates"]):
        for layer, candidates_of_expert in enumerate(layers):
            for expert, candidates in enumerate(candidates_of_expert):
                found, times = np.unique(slots_LGET[layer, rank, expert], return_counts=True)
                assert found.tolist() == candidates, (rank, layer, expert)
                # Every candidate is as likely: 600 tokens over n, six standard deviations.
                share = 600 / len(candidates)
                assert np.abs(times - share).max() <= 6 * np.sqrt(share), (rank, layer, expert)


def test_without_an_all_to_all_row_t_takes_replica_t_modulo_their_number_on_every_rank(golden):
    slots_LGET = dispatched(golden, ByRow, tokens=7)
    row = 0
    for rank in range(golden["gpus"]):
        for expert in range(golden["experts"]):
            for token in range(7):
                for layer, map_P in enumerate(golden["map"]):
                    slots = [slot for slot, held in enumerate(map_P) if held == expert]
                    assert slots_LGET[layer, rank, expert, token] == slots[row % len(slots)]
                row += 1


def test_started_without_a_dispatch_algorithm_expert_ids_are_slots():
    swapped = np.array([[1, 0, 1, 0]], dtype=np.int32)
    dispatcher = Unmapped.for_map(swapped, experts=2, ranks=Ranks(2, 2, 2))

    slots = dispatcher.slots_of(np.array([[[0, 1]]]), source_T=np.array([1]), random_picks=np.random.default_rng(0))

    assert slots.tolist() == [[[0, 1]]]


@pytest.mark.parametrize(
    ("dispatch", "a2a", "kind"),
    [
        ("dynamic", "deepep", NearestDynamic),
        ("static", "deepep", NearestStatic),
        ("dynamic", "none", ByRow),
        (None, "deepep", Unmapped),
        (None, "none", Unmapped),
    ],
)
def test_the_engines_flags_choose_the_rule(dispatch, a2a, kind):
    assert dispatcher_class(dispatch=dispatch, a2a_backend=a2a) is kind


maps = st.integers(1, 5).flatmap(
    lambda experts: st.lists(
        st.lists(st.integers(0, experts - 1), min_size=8, max_size=8).map(lambda rest: [*range(experts), *rest][:8]),
        min_size=1,
        max_size=3,
    ).map(lambda rows: (experts, np.array(rows, dtype=np.int32)))
)


@settings(max_examples=60, deadline=None)
@given(maps, st.sampled_from([(1, 1), (2, 2), (2, 1), (4, 4), (4, 2), (4, 1), (8, 2)]))
def test_any_rule_serves_each_pair_by_a_slot_that_holds_its_expert(experts_and_map, gpus_and_width):
    (experts, map_LP), (gpus, gpus_per_node) = experts_and_map, gpus_and_width
    ranks = Ranks(gpus, gpus_per_node, 8 // gpus)
    experts_LTK = np.random.default_rng(1).integers(0, experts, size=(len(map_LP), 40, 2))
    source_T = np.arange(40) % gpus
    for kind in (NearestDynamic, NearestStatic, ByRow):
        dispatcher = kind.for_map(map_LP, experts=experts, ranks=ranks)
        slots = dispatcher.slots_of(experts_LTK, source_T=source_T, random_picks=np.random.default_rng(2))
        served = np.take_along_axis(map_LP[:, None, :], slots.astype(np.int64), axis=2)
        np.testing.assert_array_equal(served, experts_LTK)
        on_own_gpu = slots // ranks.slots_per_gpu == source_T[None, :, None]
        held_at_home = np.stack(
            [
                [np.isin(experts_LTK[layer, t], _held(map_LP[layer], source_T[t], ranks)) for t in range(40)]
                for layer in range(len(map_LP))
            ]
        )
        if kind is not ByRow:
            # Behind an all-to-all a token never leaves a GPU that holds its expert.
            np.testing.assert_array_equal(on_own_gpu, held_at_home)


def _held(map_P: np.ndarray, gpu: int, ranks: Ranks) -> np.ndarray:
    return map_P[gpu * ranks.slots_per_gpu : (gpu + 1) * ranks.slots_per_gpu]


@settings(max_examples=60, deadline=None)
@given(maps)
def test_replica_lists_are_the_slots_of_every_expert_in_order(experts_and_map):
    experts, map_LP = experts_and_map
    replicas = list_replicas(map_LP, experts=experts)
    for layer, map_P in enumerate(map_LP):
        for expert in range(experts):
            slots = np.flatnonzero(map_P == expert).tolist()
            count = int(replicas.replicas_LE[layer, expert])
            assert replicas.slots_LEX[layer, expert, :count].tolist() == slots
            assert (replicas.slots_LEX[layer, expert, count:] == -1).all()
