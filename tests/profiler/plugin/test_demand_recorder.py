"""Counts in windows equal a plain count of the same routing, eager or out of a captured graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.engine.contract_demand import DemandOptions
from profiler.plugin import step_log
from profiler.plugin.demand_recorder import MOST_UNSETTLED_STEPS, DemandRecorder
from profiler.plugin.graph_tap import GraphTap
from profiler.plugin.orders import OrderRefused
from profiler.plugin.own_rows import StepRows
from profiler.plugin.rank_view import RankView
from profiler.plugin.step_log import LoggedStep
from tests.case_files import case, case_json
from tests.profiler.plugin.views import dp_attention, plain, scattered

LAYERS, EXPERTS, TOP_K = 3, 6, 2
MOE_LAYERS = (1, 2)


def recorder(view: RankView, *, experts: int = EXPERTS, tap: GraphTap | None = None, **options: Any) -> DemandRecorder:
    clock = iter(range(1000))
    return DemandRecorder(
        layers=LAYERS,
        experts=experts,
        device=torch.device("cpu"),
        view=view,
        options=DemandOptions(**options),
        recording_id="r",
        tap=tap,
        clock=lambda: float(next(clock)),
    )


def routing(seed: int, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(rows)]).int()


def plain_count(ids_RK: torch.Tensor) -> npt.NDArray[np.int64]:
    return np.bincount(ids_RK.numpy().ravel(), minlength=EXPERTS)


def run_step(
    found: DemandRecorder,
    step: StepRows,
    ids_RK: torch.Tensor,
    *,
    padded: list[int] | None,
    number: int,
    tap: Any = None,
) -> None:
    found.begin_step(step)
    for layer in MOE_LAYERS:
        found.count_layer(layer, ids_RK, padded_tokens=padded)
    settle(found, found.end_step(number=number, generation=number // 3, captured=tap))


def settle(found: DemandRecorder, step: LoggedStep | None, *, unused: tuple[int, ...] = ()) -> None:
    assert step is not None
    found.settle(step, unused_tokens=unused)


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=8),
    window_steps=st.integers(1, 4),
)
def test_windows_hold_what_was_routed(steps: list[tuple[int, int, int]], window_steps: int) -> None:
    found = recorder(plain(0), window_steps=window_steps)
    expected = np.zeros((2, EXPERTS), dtype=np.int64)
    for number, (phase, tokens, padding) in enumerate(steps):
        ids_RK = routing(number, tokens + padding) if tokens + padding else torch.zeros((0, TOP_K), dtype=torch.int32)
        run_step(found, StepRows(phase, tokens), ids_RK, padded=None, number=number)
        expected[phase] += plain_count(ids_RK[:tokens])
    found.stop()
    windows = found.fetch(100)
    counts_FLE = sum(window.counts_FLE() for window in windows)
    assert isinstance(counts_FLE, np.ndarray)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(counts_FLE[:, layer], expected * (layer in MOE_LAYERS))
    assert [window.index for window in windows] == list(range(len(windows)))
    assert sum(window.steps for window in windows) == len(steps)
    assert all(window.steps == window_steps for window in windows[:-1])


def test_padding_ids_and_shared_experts_are_left_out() -> None:
    found = recorder(plain(0), window_steps=1)
    run_step(found, StepRows(0, 2), torch.tensor([[0, EXPERTS], [-1, 5]]), padded=None, number=0)
    (window,) = found.fetch(1)
    assert window.counts_FLE()[0, 1].tolist() == [1, 0, 0, 0, 0, 1]


def test_gathered_rows_go_to_their_rank() -> None:
    ids_RK = routing(1, 9)
    padded = [4, 5]
    for rank, own in enumerate((ids_RK[:3], ids_RK[4:8])):
        found = recorder(dp_attention(rank, ranks=2), window_steps=1)
        run_step(found, StepRows(1, len(own)), ids_RK, padded=padded, number=0)
        (window,) = found.fetch(1)
        np.testing.assert_array_equal(window.counts_FLE()[1, 2], plain_count(own))


def test_captured_routing_is_counted_after_the_step() -> None:
    """A replayed graph runs no Python: only the tap's buffers tell what was routed."""
    tap = GraphTap(layers=LAYERS, top_k=TOP_K)
    ids_RK = routing(2, 8)
    tap.make_room(ids_RK)
    found = recorder(dp_attention(1, ranks=2), window_steps=1)
    found.begin_step(StepRows(1, 3))
    for layer in MOE_LAYERS:
        tap.write(layer, ids_RK)  # what the graph does
    settle(found, found.end_step(number=0, generation=0, captured=tap))
    (window,) = found.fetch(1)
    for layer in MOE_LAYERS:
        np.testing.assert_array_equal(window.counts_FLE()[1, layer], plain_count(ids_RK[4:7]))
    assert window.counts_FLE()[:, 0].sum() == 0


def test_only_the_buffer_of_the_replayed_graph_counts() -> None:
    tap = GraphTap(layers=LAYERS, top_k=TOP_K)
    small, large = routing(3, 2), routing(4, 6)
    tap.make_room(small)
    tap.write(1, small)
    tap.make_room(large)
    found = recorder(plain(0), tap=tap, window_steps=1)
    found.begin_step(StepRows(1, 2))
    settle(found, found.end_step(number=0, generation=0, captured=tap))
    (window,) = found.fetch(1)
    assert window.counts_FLE().sum() == 0, "no graph ran in this step"
    found.begin_step(StepRows(1, 5))
    tap.write(1, large)
    settle(found, found.end_step(number=1, generation=0, captured=tap))
    (window,) = found.fetch(1)
    np.testing.assert_array_equal(window.counts_FLE()[1, 1], plain_count(large[:5]))


def test_a_graph_of_the_time_before_the_recording_does_not_count() -> None:
    tap = GraphTap(layers=LAYERS, top_k=TOP_K)
    tap.make_room(routing(3, 4))
    for layer in MOE_LAYERS:
        tap.write(layer, routing(3, 4))
    found = recorder(plain(0), tap=tap, window_steps=2)
    for number in range(2):  # steps whose graphs were captured without the tap
        found.begin_step(StepRows(1, 4))
        settle(found, found.end_step(number=number, generation=0, captured=tap))
    (window,) = found.fetch(1)
    assert window.counts_FLE().sum() == 0


def test_steps_without_own_tokens_between_are_not_taken_for_the_next_one() -> None:
    """A rank without tokens replays the graph for the others' sake; the step after it may run no graph of the tap."""
    tap = GraphTap(layers=LAYERS, top_k=TOP_K)
    first, idle = routing(3, 4), routing(4, 4)
    tap.make_room(first)
    found = recorder(dp_attention(0, ranks=2), tap=tap, window_steps=3)
    for number, (tokens, ids_RK) in enumerate(((2, first), (0, idle), (2, None))):
        found.begin_step(StepRows(1, tokens))
        if ids_RK is not None:
            for layer in MOE_LAYERS:
                tap.write(layer, ids_RK)
        settle(found, found.end_step(number=number, generation=0, captured=tap))
    (window,) = found.fetch(1)
    for layer in MOE_LAYERS:
        np.testing.assert_array_equal(window.counts_FLE()[1, layer], plain_count(first[:2]))


@pytest.mark.parametrize("held_bytes", [1, 150, 10_000])
def test_how_often_copies_are_counted_changes_no_count(held_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_log, "HELD_BYTES", held_bytes)
    tap = GraphTap(layers=LAYERS, top_k=TOP_K)
    tap.make_room(routing(0, 8))
    found = recorder(plain(0), tap=tap, window_steps=12)
    expected = np.zeros((2, EXPERTS), dtype=np.int64)
    for number in range(12):
        phase, tokens = number % 2, number % 5
        ids_RK = routing(number, tokens + 3)
        found.begin_step(StepRows(phase, tokens))
        for layer in MOE_LAYERS:
            tap.write(layer, ids_RK)
        settle(found, found.end_step(number=number, generation=0, captured=tap))
        expected[phase] += plain_count(ids_RK[:tokens])
    (window,) = found.fetch(1)
    for layer in MOE_LAYERS:
        np.testing.assert_array_equal(window.counts_FLE()[:, layer], expected)


def test_eager_layers_are_not_counted_again_from_the_tap() -> None:
    tap = GraphTap(layers=LAYERS, top_k=TOP_K)
    ids_RK = routing(5, 4)
    tap.make_room(ids_RK)
    for layer in MOE_LAYERS:
        tap.write(layer, ids_RK)
    found = recorder(plain(0), window_steps=1)
    run_step(found, StepRows(0, 4), ids_RK, padded=None, number=0, tap=tap)
    (window,) = found.fetch(1)
    np.testing.assert_array_equal(window.counts_FLE()[0, 1], plain_count(ids_RK))


def test_ring_drops_the_oldest() -> None:
    found = recorder(plain(0), window_steps=1, ring_windows=2)
    for number in range(5):
        run_step(found, StepRows(0, 1), routing(number, 1), padded=None, number=number)
    assert found.dropped_windows == 3
    assert [window.index for window in found.fetch(10)] == [3, 4]
    assert found.fetch(10) == []


def test_empty_window_is_not_closed_and_stop_closes_the_last() -> None:
    found = recorder(plain(0), window_seconds=1.0)
    found.close_window()
    assert found.finished_windows == 0
    run_step(found, StepRows(0, 1), routing(0, 1), padded=None, number=7)
    found.stop()
    (window,) = found.fetch(1)
    assert (window.first_step, window.steps, window.generation) == (7, 1, 2)
    assert not found.recording


def test_recording_ends_after_max_steps() -> None:
    found = recorder(plain(0), window_steps=10, max_steps=2)
    for number in range(2):
        run_step(found, StepRows(0, 1), routing(number, 1), padded=None, number=number)
    assert not found.recording
    assert found.finished_windows == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_one_attention_group_count_tokens_once(rank: int) -> None:
    found = recorder(plain(rank), window_steps=1)
    run_step(found, StepRows(0, 3), routing(0, 3), padded=None, number=0)
    (window,) = found.fetch(1)
    assert window.tokens == [3 * (rank == 0), 0]
    assert window.counts_FLE().sum() == (3 * TOP_K * len(MOE_LAYERS) if rank == 0 else 0)


def test_tokens_thrown_away_are_left_out() -> None:
    found = recorder(plain(0), window_steps=1)
    ids_RK = routing(6, 5)
    found.begin_step(StepRows(1, 4))
    for layer in MOE_LAYERS:
        found.count_layer(layer, ids_RK, padded_tokens=None)
    settle(found, found.end_step(number=0, generation=0, captured=None), unused=(1, 3))
    (window,) = found.fetch(1)
    for layer in MOE_LAYERS:
        np.testing.assert_array_equal(window.counts_FLE()[1, layer], plain_count(ids_RK[[0, 2]]))
    assert (window.tokens, window.unused_tokens) == ([0, 2], 2)


@pytest.mark.parametrize(
    ("view", "rows", "used"),
    [
        (plain(0), 5, [0, 2]),
        (dp_attention(1, ranks=2), 10, [5, 7]),
        (dp_attention(1, ranks=2, a2a_backend="deepep"), 5, [0, 2]),
        (scattered(0, ranks=2), 3, [0, 2]),
        (scattered(1, ranks=2), 3, []),
        (scattered(1, ranks=4), 1, []),
    ],
)
def test_tokens_thrown_away_are_left_out_of_graphs(view: RankView, rows: int, used: list[int]) -> None:
    """Tokens 1 and 3 of a batch of 4 go; which row they stand in depends on the engine."""
    tap = GraphTap(layers=LAYERS, top_k=TOP_K)
    ids_RK = routing(7, rows)
    tap.make_room(ids_RK)
    found = recorder(view, window_steps=2)
    for number in range(2):
        found.begin_step(StepRows(1, 4))
        for layer in MOE_LAYERS:
            tap.write(layer, ids_RK)
        step = found.end_step(number=number, generation=0, captured=tap)
        settle(found, step, unused=(1, 3) if number == 0 else (0, 1, 2, 3))
    (window,) = found.fetch(1)
    for layer in MOE_LAYERS:
        np.testing.assert_array_equal(window.counts_FLE()[1, layer], plain_count(ids_RK[used]))


def test_a_step_in_flight_belongs_to_the_recording_that_launched_it() -> None:
    found = recorder(plain(0), window_steps=10)
    found.begin_step(StepRows(1, 2))
    found.count_layer(1, routing(8, 2), padded_tokens=None)
    step = found.end_step(number=0, generation=0, captured=None)
    found.stop()
    assert not found.takes_steps
    assert found.finished_windows == 0
    settle(found, step, unused=(0,))
    (window,) = found.fetch(1)
    np.testing.assert_array_equal(window.counts_FLE()[1, 1], plain_count(routing(8, 2)[1:]))
    settle(found, step)
    assert found.fetch(1) == [], "a step counts once"


def test_a_paused_engine_looks_at_no_results() -> None:
    found = recorder(plain(0), window_steps=10)
    found.begin_step(StepRows(1, 2))
    found.count_layer(1, routing(9, 2), padded_tokens=None)
    found.end_step(number=0, generation=0, captured=None)
    found.stop()
    (window,) = found.fetch(1)
    np.testing.assert_array_equal(window.counts_FLE()[1, 1], plain_count(routing(9, 2)))


def test_max_steps_holds_with_a_step_in_flight() -> None:
    found = recorder(plain(0), window_steps=10, max_steps=1)
    found.begin_step(StepRows(1, 1))
    step = found.end_step(number=0, generation=0, captured=None)
    assert found.recording
    assert not found.takes_steps
    settle(found, step)
    assert not found.recording
    assert found.finished_windows == 1


def test_an_engine_whose_results_are_not_seen_is_found_out() -> None:
    found = recorder(plain(0), window_steps=10)
    for number in range(MOST_UNSETTLED_STEPS):
        found.begin_step(StepRows(1, 1))
        found.end_step(number=number, generation=0, captured=None)
    found.begin_step(StepRows(1, 1))
    with pytest.raises(OrderRefused) as refusal:
        found.end_step(number=MOST_UNSETTLED_STEPS, generation=0, captured=None)
    assert refusal.value.code == "ROUTING_NOT_SEEN"


def test_more_experts_per_token_than_sglangs_recorder_can_hold() -> None:
    """Case P07: ``per_token`` recording ends at top-8; the plugin counts whatever the router hands over."""
    top_k = case_json("P07", "job.json")["model_config"]["num_experts_per_tok"]
    assert top_k > case("P07")["expect"]["oracle"]["max_top_k"]
    found = recorder(plain(0), window_steps=1, experts=2 * top_k)
    ids_RK = torch.stack([torch.arange(top_k) + row % 3 for row in range(5)])
    run_step(found, StepRows(0, 5), ids_RK, padded=None, number=0)
    (window,) = found.fetch(1)
    expected = np.bincount(ids_RK.numpy().ravel(), minlength=2 * top_k)
    np.testing.assert_array_equal(window.counts_FLE()[0, 1], expected)


def test_a_pass_of_more_rows_than_sglangs_recorder_can_hold() -> None:
    """Case P08: ``per_token`` recording holds ``8 * chunked_prefill_size`` rows; the plugin has no such buffer."""
    job = case_json("P08", "job.json")
    rows = job["max_tokens_per_pass"]
    assert rows > 8 * job["chunked_prefill_size"] == case("P08")["expect"]["oracle"]["rows"]
    found = recorder(plain(0), window_steps=1)
    ids_RK = torch.stack([torch.arange(rows) % EXPERTS, (torch.arange(rows) + 1) % EXPERTS], dim=1)
    run_step(found, StepRows(0, rows), ids_RK, padded=None, number=0)
    (window,) = found.fetch(1)
    np.testing.assert_array_equal(window.counts_FLE()[0, 1], plain_count(ids_RK))
    assert window.tokens[0] == rows
