"""Pushing into a replay engine over a real socket: checked before, applied between steps, read back after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption, LayoutMismatch, SlotCountMismatch
from placement.layout import Layout
from placement.score import score
from placement.topology import Topology
from profiler.engine.client import EngineClient
from profiler.engine.contract_push import PushRequest
from profiler.engine.push import push
from profiler.errors import (
    ApplyStalled,
    DispatchNotSet,
    EngineBusy,
    EngineRefused,
    LayoutHashMismatch,
    PartialApply,
    PostPushCheckFailed,
    WeightsChanged,
)
from profiler.json_file import read_json
from profiler.recordings import AFFINITY
from profiler.replay import Faults
from profiler.replay.weights import TENSORS
from tests.case_files import case, case_folder, case_json
from tests.profiler.engine.messages import placement
from tests.profiler.engine.servers import answer, engine_that_answers, healthy_routes, in_turn
from tests.profiler.replay.clients import client_of_replay
from tests.profiler.replay.traces import counts_by_source, made_up, shipped

LAYERS, EXPERTS, GPUS, SLOTS = 4, 8, 2, 10


@contextmanager
def engine(**options) -> Iterator[EngineClient]:
    """Serve a made-up trace of 4 layers and 8 experts on 2 x 5 slots."""
    options = {"gpus": GPUS, "slots_per_gpu": SLOTS // GPUS, "steps_per_s": 0, "expert_bytes": 1000, **options}
    with client_of_replay(made_up([(6, 2)] * 3), **options) as client:
        yield client


def any_layout(
    seed: int, *, layers: int = LAYERS, experts: int = EXPERTS, gpus: int = GPUS, slots: int = SLOTS
) -> Layout:
    random = np.random.default_rng(seed)
    rows = [np.concatenate([np.arange(experts), random.integers(0, experts, slots - experts)]) for _ in range(layers)]
    return Layout(np.stack([random.permutation(row) for row in rows]), gpus=gpus, experts=experts)


# ------------------------------------------------------------------ what a push does


def test_a_push_is_read_back_with_its_weights_and_counted():
    layout = any_layout(1)
    with engine() as client:
        before = client.placement(checksums=True)
        result = push(client, layout, history=None)
        after = client.placement(checksums=True)
    assert result.status == "applied"
    assert result.weights_checked
    assert (result.previous.hash, after.layout_hash) == (before.layout_hash, layout.hash)
    assert (before.generation, after.generation) == (0, 1)
    changed = int((before.map_LP != layout.slot_to_expert_LP).sum())
    (chunk,) = result.answer.chunks
    assert result.changed_slots == chunk.changed_slots == changed
    assert chunk.changed_bytes == 1000 * changed
    assert result.to_dict()["moved_bytes"] == chunk.moved_bytes == 1000 * result.moved_slots
    assert "(simulated)" in result.sentence()
    assert layout.hash[:12] in result.sentence()
    assert [notice.code for notice in result.notices] == ["ENGINE_UNPROTECTED"]


def test_chunks_follow_one_another_with_serving_in_between():
    with engine(steps_per_s=None) as client:
        result = push(client, any_layout(1), history=None, layers_per_chunk=1, pause_s=0.05)
        assert [chunk.layers for chunk in result.answer.chunks] == [(0,), (1,), (2,), (3,)]
        assert all(chunk.status == "applied" and chunk.seconds >= 0 for chunk in result.answer.chunks)
        assert result.answer.new_layers == (0, 1, 2, 3)
        assert client.placement().generation == 1


def test_serving_goes_on_between_the_chunks():
    with engine(steps_per_s=None) as client, ThreadPoolExecutor(1) as other:
        pushing = other.submit(push, client, any_layout(1), history=None, layers_per_chunk=1, pause_s=0.5)
        steps_under: dict[str, set[int]] = {}  # counters start again with every chunk's layout
        with EngineClient(client.url) as watcher:
            while not pushing.done():
                seen = watcher.measured()
                if seen.push_in_progress:
                    steps_under.setdefault(seen.layout_hash, set()).add(seen.steps)
        assert any(len(steps) > 1 for steps in steps_under.values())
        assert pushing.result().status == "applied"


def test_only_layers_that_change_are_moved():
    with engine() as client:
        layout = any_layout(1)
        mixed = client.placement().map_LP.copy()
        mixed[2] = layout.slot_to_expert_LP[2]
        result = push(client, Layout(mixed, gpus=GPUS, experts=EXPERTS), history=None, layers_per_chunk=1)
    assert [chunk.layers for chunk in result.answer.chunks] == [(2,)]


def test_layers_can_be_chosen_and_the_others_stay():
    layout = any_layout(1)
    with engine() as client:
        before = client.placement()
        answer = client.put_placement(PushRequest(layout.slot_to_expert_LP, layers=(1, 3)))
        after = client.placement()
    assert answer.new_layers == (1, 3)
    np.testing.assert_array_equal(after.map_LP[[1, 3]], layout.slot_to_expert_LP[[1, 3]])
    np.testing.assert_array_equal(after.map_LP[[0, 2]], before.map_LP[[0, 2]])


def test_a_dry_run_says_what_would_move_and_moves_nothing():
    with engine() as client:
        before = client.placement(checksums=True)
        result = push(client, any_layout(1), history=None, dry_run=True, layers_per_chunk=3)
        after = client.placement(checksums=True)
    assert result.status == "dry_run"
    assert [(chunk.layers, chunk.status) for chunk in result.answer.chunks] == [
        ((0, 1, 2), "planned"),
        ((3,), "planned"),
    ]
    assert result.answer.old_layers == (0, 1, 2, 3)
    assert result.move_seconds is None
    assert (after.layout_hash, after.generation, after.checksums) == (before.layout_hash, 0, before.checksums)


def test_the_layout_that_runs_already_is_not_pushed_again():
    with engine() as client:
        push(client, any_layout(1), history=None)
        again = push(client, any_layout(1), history=None)
        assert client.placement().generation == 1
    assert again.status == "unchanged"
    assert "already" in again.sentence()


def test_many_pushes_in_a_row_leave_the_engine_as_the_last_one_says():
    with engine(steps_per_s=200) as client:
        for seed in range(50):
            client.put_placement(PushRequest(any_layout(seed).slot_to_expert_LP))
        final = push(client, any_layout(1000), history=None)
        assert client.measured().layout_hash == any_layout(1000).hash
    assert final.weights_checked


# ------------------------------------------------------------------ measured again, against the ruler


@pytest.mark.parametrize(("gpus", "nodes", "slots"), [(2, 1, 40), (4, 2, 48), (8, 2, 64)])
@pytest.mark.parametrize("algorithm", ["dynamic", "static"])
def test_what_is_measured_after_a_push_is_what_the_ruler_predicts(gpus, nodes, slots, algorithm):
    trace = shipped(AFFINITY)
    homes = {request: request % gpus for request in range(64)}
    layout = any_layout(gpus, layers=6, experts=32, gpus=gpus, slots=slots)
    options = {"steps_per_s": 0, "passes": 1, "dispatch": algorithm, "homes": "round-robin"}
    with client_of_replay(trace, gpus=gpus, nodes=nodes, slots_per_gpu=slots // gpus, **options) as client:
        push(client, layout, history=None)
        client.run_steps(100_000)
        measured = client.measured()
    demand = Demand(counts_by_source(trace, homes, gpus=gpus)[None], "measured", ("all",))
    predicted = score(layout, demand, Topology(gpus, nodes), dispatch=Dispatch(f"nearest-{algorithm}"))
    # Random picks never go home, so what stays there is exact; what each other GPU gets is a sample.
    assert measured.local_gpu == pytest.approx(predicted.local_gpu, rel=1e-9)
    assert measured.local_node == pytest.approx(predicted.local_node, rel=0.01)
    assert measured.imbalance == pytest.approx(predicted.imbalance, rel=0.01)
    if algorithm == "static":
        assert measured.imbalance == pytest.approx(predicted.imbalance, rel=1e-9)


# ------------------------------------------------------------------ who may push


def test_another_layout_than_expected_is_left_alone():
    with engine() as client:
        before = client.placement()
        with pytest.raises(LayoutHashMismatch, match=before.layout_hash):
            push(client, any_layout(1), history=None, expected_hash="f" * 64)
        with pytest.raises(LayoutHashMismatch, match=before.layout_hash):
            client.put_placement(PushRequest(any_layout(1).slot_to_expert_LP, expected_layout_hash="f" * 64))
        assert client.placement().generation == 0
        assert push(client, any_layout(1), history=None, expected_hash=before.layout_hash).status == "applied"


def test_of_two_pushers_at_once_one_wins_and_the_other_gets_a_conflict():
    with engine(steps_per_s=None) as client:
        expected = client.placement().layout_hash
        together = threading.Barrier(2)

        def pushed(seed: int) -> str:
            with EngineClient(client.url) as mine:
                together.wait()
                try:
                    request = PushRequest(
                        any_layout(seed).slot_to_expert_LP,
                        expected_layout_hash=expected,
                        layers_per_chunk=1,
                        pause_s=0.05,
                    )
                    return mine.put_placement(request).layout_hash
                except (EngineBusy, LayoutHashMismatch) as error:
                    return error.code

        with ThreadPoolExecutor(2) as pushers:
            ends = list(pushers.map(pushed, (1, 2)))
        winner = client.placement()
    assert winner.generation == 1
    assert winner.layout_hash in {any_layout(1).hash, any_layout(2).hash}
    assert sorted(end == winner.layout_hash for end in ends) == [False, True]
    assert {end for end in ends if end != winner.layout_hash} <= {"ENGINE_BUSY", "LAYOUT_HASH_MISMATCH"}


# ------------------------------------------------------------------ refused before anything moves


@pytest.fixture(scope="module")
def untouched() -> Iterator[EngineClient]:
    """An engine for pushes that must not change it."""
    with engine() as client:
        yield client


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([[0, 1, 2, 3, 4, 5, 6, 7, 0, -1]] * 4, "EXPERT_ID_RANGE"),
        ([[0, 1, 2, 3, 4, 5, 6, 7, 0, 8]] * 4, "EXPERT_ID_RANGE"),
        ([[0, 1, 2, 3, 4, 5, 6, 6, 0, 1]] * 4, "EXPERT_MISSING"),
        ([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]] * 4, "SLOT_COUNT_MISMATCH"),
        ([[0, 1, 2, 3, 4, 5, 6, 7]] * 4, "SLOT_COUNT_MISMATCH"),
        ([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]] * 3, "LAYOUT_MISMATCH"),
    ],
)
def test_a_bad_map_is_refused_by_the_engine_and_changes_nothing(untouched, rows, code):
    before = untouched.placement(checksums=True)
    with pytest.raises(EngineRefused, match=f"status 400.*{code}"):
        untouched.put_placement(PushRequest(np.array(rows, dtype=np.int32)))
    after = untouched.placement(checksums=True)
    assert (after.layout_hash, after.generation, after.checksums) == (before.layout_hash, 0, before.checksums)


@pytest.mark.parametrize(
    ("layout", "error", "words"),
    [
        (any_layout(1, slots=12), SlotCountMismatch, "12 slots per layer; the engine has 10"),
        (any_layout(1, slots=8), SlotCountMismatch, "plan for 5 slots on each of 2 GPUs"),
        (any_layout(1, layers=3), LayoutMismatch, "3 decoder layers, the engine 4"),
        (any_layout(1, experts=7), LayoutMismatch, "7 experts, the engine 8"),
        (any_layout(1, gpus=5), LayoutMismatch, "5 GPUs; the engine has 2"),
    ],
)
def test_a_layout_for_another_engine_is_refused_before_it_is_sent(untouched, layout, error, words):
    with pytest.raises(error, match=words):
        push(untouched, layout, history=None)
    assert untouched.placement().generation == 0


def test_a_map_of_another_width_than_the_engine_names_both_widths():
    found = case("U04")
    shape = found["params"]["engine"]
    rows = read_json(case_folder("U04") / "map.json")["physical_to_logical_map"]
    layout = Layout(np.array(rows), gpus=shape["ep_size"], experts=shape["num_experts"])
    trace = made_up([(2, 1)], layers=shape["num_layers"], experts=shape["num_experts"])
    slots_per_gpu = (shape["num_experts"] + shape["num_redundant"]) // shape["ep_size"]
    serving = client_of_replay(trace, gpus=shape["ep_size"], slots_per_gpu=slots_per_gpu)
    with serving as client, pytest.raises(SlotCountMismatch) as caught:
        push(client, layout, history=None)
    assert caught.value.code == found["expect"]["error_code"]
    oracle = found["expect"]["oracle"]
    assert f"{oracle['got']} slots" in caught.value.detail
    assert f"has {oracle['expected']}" in caught.value.detail


def test_an_engine_without_a_dispatch_algorithm_is_left_alone():
    with engine(dispatch=None) as client:
        with pytest.raises(DispatchNotSet, match="--ep-dispatch-algorithm dynamic"):
            push(client, any_layout(1), history=None)
        assert client.placement().generation == 0


def test_why_it_is_left_alone_such_an_engine_serves_experts_from_slots_that_hold_others():
    trace = made_up([(6, 2)] * 3)
    backwards = np.tile(np.array([7, 6, 5, 4, 3, 2, 1, 0]), (LAYERS, 1))
    loads = {}
    for dispatch in ("dynamic", None):
        started = {"layout": Layout(backwards, gpus=2, experts=8), "dispatch": dispatch}
        with client_of_replay(trace, gpus=2, slots_per_gpu=4, steps_per_s=0, passes=1, **started) as client:
            client.run_steps(1000)
            loads[dispatch] = client.measured().load_LG
    np.testing.assert_array_equal(loads[None], loads["dynamic"][:, ::-1])


@pytest.mark.parametrize("bad", [{"layers_per_chunk": 0}, {"pause_s": -0.1}, {"pause_s": 61}])
def test_a_pace_that_cannot_be_is_refused(untouched, bad):
    with pytest.raises(BadOption):
        push(untouched, any_layout(1), history=None, **bad)
    assert untouched.placement().generation == 0


# ------------------------------------------------------------------ what goes wrong on the way


@pytest.mark.parametrize(("left_behind", "number"), [(TENSORS, "U09"), (("w2_weight",), "U10")])
def test_weights_that_stay_behind_are_found_although_the_map_is_new(left_behind, number):
    with engine(faults=Faults(left_behind=left_behind)) as client:
        with pytest.raises(PostPushCheckFailed, match="_weight is another one's") as caught:
            push(client, any_layout(1), history=None)
        assert client.placement().layout_hash == any_layout(1).hash
    assert caught.value.code == case(number)["expect"]["error_code"]


def test_a_failed_chunk_leaves_whole_layers_and_says_which():
    found = case("U19")
    scenario = read_json(case_folder("U19") / "scenario.json")
    size = scenario["layers_per_chunk"]
    failing = next(number for number, step in enumerate(scenario["steps"], start=1) if "error" in step)
    layout = any_layout(1)
    with engine(faults=Faults(fail_chunk=failing)) as client:
        before = client.placement(checksums=True)
        with pytest.raises(PartialApply) as caught:
            push(client, layout, history=None, layers_per_chunk=size)
        after = client.placement(checksums=True)
        assert caught.value.code == found["expect"]["error_code"]
        state = found["expect"]["oracle"]["state"]
        assert (list(caught.value.new_layers), list(caught.value.old_layers)) == (state["new"], state["old"])
        np.testing.assert_array_equal(after.map_LP[state["new"]], layout.slot_to_expert_LP[state["new"]])
        np.testing.assert_array_equal(after.map_LP[state["old"]], before.map_LP[state["old"]])
        assert not after.push_in_progress
        assert any("rollback" in remedy for remedy in caught.value.remedies)
        # Whatever was left, the old map can be pushed back, weights and all.
        old = Layout(before.map_LP, gpus=GPUS, experts=EXPERTS)
        assert push(client, old, history=None).status == "applied"
        assert client.placement(checksums=True).checksums == before.checksums


def test_an_update_of_the_weights_during_a_push_is_said():
    """Case U18: checksums from before a new checkpoint prove nothing about the slots after it."""
    with engine() as client:
        read, updates = client.placement, iter((0, 1))
        client.placement = lambda **options: replace(read(**options), weight_updates=next(updates))
        with pytest.raises(WeightsChanged, match=r"update 1, before 0") as refusal:
            push(client, any_layout(1), history=None)
    assert refusal.value.code == case("U18")["expect"]["error_code"]
    assert "push the same layout again" in refusal.value.remedies[0]


def small_layout() -> Layout:
    """A layout for the engine of ``messages.placement`` that it does not run."""
    return Layout(np.array([[2, 1, 0, 1], [0, 1, 2, 0]]), gpus=2, experts=3)


def test_a_push_that_never_ends_is_an_error_and_not_a_wait():
    """Case U21: the engine is healthy, and the layout that was asked for never arrives."""
    refused = {"error": {"code": "RANKS_DO_NOT_ANSWER", "detail": "no answer."}}
    routes = healthy_routes() | {
        ("GET", "/moeplan/placement"): in_turn(
            answer(placement().to_json()), answer(placement(push_in_progress=True).to_json())
        ),
        ("PUT", "/moeplan/placement"): answer(refused, status=503),
    }
    with engine_that_answers(routes) as (url, _), EngineClient(url) as client, pytest.raises(ApplyStalled) as refusal:
        push(client, small_layout(), history=None, timeout_s=0.1)
    assert refusal.value.code == case("U21")["expect"]["error_code"]
    assert placement().layout_hash[:12] in refusal.value.detail


def test_replicas_that_were_never_loaded_are_found_before_a_push():
    """Case U25: an engine that loads an expert's weights into one of its slots only answers garbage from the other."""
    nodes = case_json("U25", "server_info.json")["nnodes"]
    half_loaded = {"w": (("a", "b", "c", "nan"), ("f", "e", "d", "e"))}
    routes = healthy_routes(nodes=nodes, checksums=half_loaded)
    with engine_that_answers(routes) as (url, told), EngineClient(url) as client:
        with pytest.raises(PostPushCheckFailed, match=r"layer 0, slot 3 should hold expert 0.*wrong before this push"):
            push(client, small_layout(), history=None)
        assert ("PUT", "/moeplan/placement") not in told.requests
