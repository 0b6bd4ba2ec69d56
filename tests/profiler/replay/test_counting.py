"""What is counted of steps served over a real socket: conservation, recorder dumps, demand windows, own-GPU share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract_demand import DemandOptions
from profiler.engine.contract_push import PushRequest
from profiler.errors import EngineBusy
from profiler.recordings import AFFINITY
from tests.profiler.replay.clients import client_of_replay
from tests.profiler.replay.traces import counts_by_source, made_up, shipped

ALL_STEPS = 100_000


@contextmanager
def paused(trace, **options) -> Iterator[EngineClient]:
    """Serve a trace once, step by step as told to."""
    with client_of_replay(trace, **{"steps_per_s": 0, "passes": 1, **options}) as client:
        yield client


def affinity_counts(gpus: int) -> np.ndarray:
    trace = shipped(AFFINITY)
    homes = {}
    for chunk in trace.chunks():
        for request, source in zip(chunk.request_id_T.tolist(), chunk.source_T.tolist(), strict=True):
            homes.setdefault(request, source if gpus == 2 else request % gpus)
    return counts_by_source(trace, homes, gpus=gpus)


@pytest.mark.parametrize(
    ("dispatch", "a2a"), [("dynamic", "deepep"), ("static", "deepep"), ("dynamic", "none"), (None, "deepep")]
)
@pytest.mark.parametrize("gpus", [2, 4])
def test_every_routed_pair_is_dispatched_once_from_its_home(gpus, dispatch, a2a):
    with paused(shipped(AFFINITY), gpus=gpus, slots_per_gpu=40 // gpus, dispatch=dispatch, a2a=a2a) as client:
        assert client.run_steps(ALL_STEPS)
        measured = client.measured()
    assert measured.tokens == 15_061
    assert measured.counts_LSG.sum() == 15_061 * 6 * 4
    np.testing.assert_array_equal(measured.counts_LSG.sum(axis=2), affinity_counts(gpus).sum(axis=2))


def test_dense_layers_are_dispatched_nowhere():
    with paused(made_up([(5, 3)] * 4, dense_layers=[0, 2]), gpus=2, slots_per_gpu=5) as client:
        client.run_steps(ALL_STEPS)
        measured, placement = client.measured(), client.placement(checksums=True)
    assert measured.counts_LSG.sum(axis=(1, 2)).tolist() == [0, 64, 0, 64]
    assert placement.moe_layers == (1, 3)
    assert [len(row) for row in placement.checksums["w2_weight"]] == [0, 10, 0, 10]


def test_figures_are_those_of_the_pairs_counted_one_by_one():
    trace = made_up([(6, 2), (3, 4)], source_ranks=2, layers=2)
    layout = Layout(np.array([[0, 1, 2, 3, 4, 5, 6, 7]] * 2), gpus=2, experts=8)
    with paused(trace, gpus=2, slots_per_gpu=4, layout=layout, nodes=2) as client:
        client.run_steps(ALL_STEPS)
        measured = client.measured()
    chunk = trace.pieces[0]
    gpu_LTK = chunk.topk_LTK // 4
    at_home = gpu_LTK == chunk.source_T[None, :, None]
    load_LG = np.array([[(layer == gpu).sum() for gpu in range(2)] for layer in gpu_LTK])
    assert measured.local_gpu == pytest.approx(at_home.mean())
    assert measured.local_node == measured.local_gpu
    assert measured.imbalance == pytest.approx(load_LG.max(axis=1).sum() / load_LG.mean(axis=1).sum())
    assert measured.gpus_per_token == pytest.approx((~at_home).any(axis=2).mean())
    assert measured.nodes_per_token == measured.gpus_per_token
    np.testing.assert_array_equal(measured.load_LG, load_LG)


def test_without_an_all_to_all_a_local_share_is_not_defined_and_the_reason_is_given():
    with paused(made_up([(6, 2)]), gpus=2, slots_per_gpu=4, a2a="none") as client:
        client.run_steps(ALL_STEPS)
        measured = client.measured()
    assert measured.local_gpu is None
    assert "every rank sees every token" in measured.local_reason
    assert measured.imbalance >= 1


# ------------------------------------------------------------------ SGLang's own recorder


def dumped(folder: Path) -> dict:
    (path,) = folder.glob("expert_distribution_recorder_*.pt")
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(("a2a", "times"), [("deepep", 1), ("none", 2)])
def test_a_dump_holds_the_counts_of_the_steps_recorded(tmp_path, a2a, times):
    with paused(shipped(AFFINITY), gpus=2, slots_per_gpu=20, a2a=a2a, dump_dir=tmp_path) as client:
        client.start_record()
        client.run_steps(ALL_STEPS)
        client.stop_record()
        client.dump_record()
        steps = client.measured().steps
    dump = dumped(tmp_path)
    counts_RLE = dump["logical_count"].numpy()
    assert dump.keys() == {"rank", "logical_count", "average_utilization_rate_over_window"}
    assert counts_RLE.shape == (1000, 6, 32)
    assert counts_RLE.dtype == np.int32
    assert int(counts_RLE.any(axis=(1, 2)).sum()) == steps
    # Without an all-to-all backend each of the two ranks counts every token.
    np.testing.assert_array_equal(counts_RLE.sum(axis=0), affinity_counts(2).sum(axis=1) * times)


def test_the_recorders_ring_keeps_the_last_steps(tmp_path):
    trace = made_up([(8, 0)], layers=1)
    options = {"prefill_tokens": 1, "recorder_ring_steps": 3, "dump_dir": tmp_path}
    with paused(trace, gpus=1, slots_per_gpu=8, **options) as client:
        client.start_record()
        client.run_steps(8)
        client.dump_record()
    last_rows = trace.pieces[0].topk_LTK[:, -3:]
    np.testing.assert_array_equal(
        dumped(tmp_path)["logical_count"].numpy().sum(axis=(0, 1)), np.bincount(last_rows.ravel(), minlength=8)
    )


def test_a_dump_after_a_push_is_read_with_the_new_map_as_sglang_does(tmp_path):
    trace = made_up([(8, 0)], layers=1)
    swapped = np.array([[7, 6, 5, 4, 3, 2, 1, 0]], dtype=np.int32)
    with paused(trace, gpus=1, slots_per_gpu=8, dump_dir=tmp_path) as client:
        client.start_record()
        client.run_steps(ALL_STEPS)
        client.put_placement(PushRequest(map_LP=swapped))
        client.dump_record()
    truth_E = np.bincount(trace.pieces[0].topk_LTK.ravel(), minlength=8)
    np.testing.assert_array_equal(dumped(tmp_path)["logical_count"].numpy().sum(axis=(0, 1)), truth_E[::-1])


def test_starting_twice_throws_the_first_record_away_and_says_so(tmp_path, caplog):
    with paused(made_up([(8, 0)], layers=1), gpus=1, slots_per_gpu=8, dump_dir=tmp_path, prefill_tokens=4) as client:
        client.start_record()
        client.run_steps(1)
        client.start_record()
        client.run_steps(1)
        client.dump_record()
    assert dumped(tmp_path)["logical_count"].sum() == 4 * 2
    assert "thrown away" in caplog.text


# ------------------------------------------------------------------ demand


def test_windows_of_steps_add_up_to_the_trace_by_source_and_phase():
    trace = shipped(AFFINITY)
    with paused(trace, gpus=2, slots_per_gpu=20) as client:
        client.start_demand(DemandOptions(window_steps=25))
        client.run_steps(ALL_STEPS)
        client.stop_demand()
        answer = client.demand(max_windows=1000)
        steps = client.measured().steps
    assert [window.index for window in answer.windows] == list(range(len(answer.windows)))
    assert [window.steps for window in answer.windows[:-1]] == [25] * (len(answer.windows) - 1)
    assert sum(window.steps for window in answer.windows) == answer.steps == steps
    assert [window.first_step for window in answer.windows] == list(range(0, steps, 25))
    total_LSE = sum(phase.counts_LSE for window in answer.windows for phase in window.phases)
    np.testing.assert_array_equal(total_LSE, affinity_counts(2))
    tokens = {
        name: sum(p.tokens for w in answer.windows for p in w.phases if p.phase == name)
        for name in ("prefill", "decode")
    }
    (chunk,) = list(trace.chunks())
    assert tokens == {"prefill": int((chunk.phase_T == 1).sum()), "decode": int((chunk.phase_T == 2).sum())}


def test_each_window_is_handed_over_once_and_the_oldest_is_dropped_when_the_ring_is_full():
    with paused(made_up([(9, 0)]), gpus=1, slots_per_gpu=8, prefill_tokens=1) as client:
        client.start_demand(DemandOptions(window_steps=1, ring_windows=4))
        client.run_steps(6)
        first = client.demand(max_windows=3)
        client.run_steps(2)
        second = client.demand(max_windows=10)
        third = client.demand(max_windows=10)
    assert [window.index for window in first.windows] == [2, 3, 4]
    assert (first.remaining, first.dropped_windows) == (1, 2)
    assert [window.index for window in second.windows] == [5, 6, 7]
    assert third.windows == ()


def test_a_recording_ends_by_itself_after_its_steps():
    with paused(made_up([(9, 0)]), gpus=1, slots_per_gpu=8, prefill_tokens=1) as client:
        client.start_demand(DemandOptions(window_steps=2, max_steps=3))
        client.run_steps(9)
        answer = client.demand(max_windows=10)
    assert not answer.recording
    assert [window.steps for window in answer.windows] == [2, 1]


def test_windows_in_seconds_follow_the_clock():
    with client_of_replay(made_up([(9, 4)] * 4), gpus=2, slots_per_gpu=4, steps_per_s=200) as client:
        client.start_demand(DemandOptions(window_seconds=0.1))
        deadline = time.monotonic() + 20
        windows = []
        while len(windows) < 3 and time.monotonic() < deadline:
            windows += client.demand().windows
            time.sleep(0.05)
    assert all(window.seconds >= 0.1 for window in windows)
    assert sum(window.steps for window in windows[:3]) >= 3


def test_one_recording_at_a_time():
    with paused(made_up([(9, 0)]), gpus=1, slots_per_gpu=8) as client:
        first = client.start_demand(DemandOptions(window_steps=1))
        with pytest.raises(EngineBusy, match="stop it first"):
            client.start_demand(DemandOptions(window_steps=1))
        client.stop_demand()
        assert client.start_demand(DemandOptions(window_steps=1)).recording_id != first.recording_id


def test_a_window_across_a_push_carries_both_generations():
    swapped = np.array([[7, 6, 5, 4, 3, 2, 1, 0]] * 4, dtype=np.int32)
    with paused(made_up([(9, 0)]), gpus=1, slots_per_gpu=8, prefill_tokens=1) as client:
        client.start_demand(DemandOptions(window_steps=4))
        client.run_steps(2)
        client.put_placement(PushRequest(map_LP=swapped))
        client.run_steps(6)
        windows = client.demand().windows
    assert [(window.generation, window.last_generation) for window in windows] == [(0, 1), (1, 1)]
