"""Capturing demand from a replay engine: what comes out is what was routed, and the recording always ends."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from placement.errors import BadOption, EmptyProfile
from profiler.engine import capture as capture_module
from profiler.engine.capture import capture
from profiler.engine.client import EngineClient
from profiler.engine.contract import Ability
from profiler.engine.contract_demand import DemandOptions, DemandState
from profiler.engine.contract_push import PushRequest
from profiler.errors import EngineAnswerInvalid, EngineBusy, EngineFailed, PluginMissing
from profiler.readers.options import ReadOptions
from profiler.readers.parquet import open_parquet
from profiler.recordings import AFFINITY
from profiler.window_by import WindowBy
from profiler.windows import build_demand
from profiler.writers.parquet import import_trace
from tests.profiler.engine.messages import demand_answer, health
from tests.profiler.engine.servers import answer, engine_that_answers, healthy_routes, in_turn
from tests.profiler.replay.clients import client_of_replay
from tests.profiler.replay.traces import counts_by_source, made_up, shipped


def stepping(url: str) -> threading.Thread:
    """Serve the whole trace from a thread as soon as a recording is open.

    The thread looks at the demand route itself, which hands over nothing before a window is finished.
    """

    def run() -> None:
        with EngineClient(url) as client:
            while not client.demand(max_windows=1).recording:
                pass
            client.run_steps(100_000)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch):
    monkeypatch.setattr(capture_module, "POLL_S", 0.02)


def captured_pass(trace, **sizes: int):
    steps = steps_of_a_pass(trace, **sizes)
    with client_of_replay(trace, steps_per_s=0, passes=1, **sizes) as client:
        thread = stepping(client.url)
        result = capture(client, steps=steps, window_steps=10_000)
        thread.join()
        return result


def steps_of_a_pass(trace, **sizes: int) -> int:
    with client_of_replay(trace, steps_per_s=0, passes=1, **sizes) as client:
        client.run_steps(100_000)
        return client.measured().steps


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_captured_pass_is_the_trace_by_source(gpus):
    trace = shipped(AFFINITY)
    recorded = {}
    for chunk in trace.chunks():
        recorded |= dict(zip(chunk.request_id_T.tolist(), chunk.source_T.tolist(), strict=True))
    homes = recorded if gpus == 2 else {request: request % gpus for request in range(64)}

    result = captured_pass(trace, gpus=gpus, slots_per_gpu=40 // gpus)

    chunks = list(result.chunks())
    np.testing.assert_array_equal(sum(c.tokens_LSE for c in chunks), counts_by_source(trace, homes, gpus=gpus))
    assert result.tokens == 15_061
    assert {chunk.phase for chunk in chunks} == {"prefill", "decode"}
    header = result.header
    assert (header.kind, header.layers, header.experts, header.top_k, header.source_ranks) == ("counts", 6, 32, 4, gpus)
    assert (header.engine, result.simulated) == ("moeplan-replay", True)
    assert len(result.content_hash) == 64
    assert result.content_hash == replace(result).content_hash


def test_windows_are_named_and_handed_over_as_they_come():
    came = []
    with client_of_replay(made_up([(6, 8)] * 4), gpus=2, slots_per_gpu=4, steps_per_s=300) as client:
        result = capture(client, steps=25, window_steps=10, on_window=came.append)
    assert [window.steps for window in result.windows] == [10, 10, 5]
    assert came == list(result.windows)
    assert {chunk.window for chunk in result.chunks()} == {"window 0", "window 1", "window 2"}
    assert result.notices == (), "what holds for the engine, not for the traffic, is not stored in the trace"


def test_seconds_end_a_capture_too():
    with client_of_replay(made_up([(6, 8)] * 4), gpus=2, slots_per_gpu=4, steps_per_s=200) as client:
        result = capture(client, seconds=0.3, window_seconds=0.1)
        assert not client.demand().recording
    assert result.steps >= 1
    assert len(result.windows) >= 2


def test_a_layout_that_changes_meanwhile_is_told():
    swapped = np.array([[7, 6, 5, 4, 3, 2, 1, 0]] * 4, dtype=np.int32)
    serving = client_of_replay(made_up([(6, 8)] * 4), gpus=2, slots_per_gpu=4, steps_per_s=200)
    with serving as client, EngineClient(client.url) as pusher:
        pushed = []

        def push_once(window) -> None:
            if not pushed:
                pushed.append(pusher.put_placement(PushRequest(swapped)))

        result = capture(client, steps=200, window_steps=5, on_window=push_once)
    assert "LAYOUT_CHANGED" in [notice.code for notice in result.notices]


# ------------------------------------------------------------------ the recording always ends


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, Interrupted, ZeroDivisionError])
def test_whatever_ends_a_capture_ends_the_recording(interruption):
    def interrupt(window) -> None:
        raise interruption

    with client_of_replay(made_up([(6, 8)] * 4), gpus=2, slots_per_gpu=4, steps_per_s=300) as client:
        with pytest.raises(interruption):
            capture(client, seconds=60, window_steps=1, on_window=interrupt)
        assert not client.demand().recording


def test_an_idle_engine_ends_a_capture_of_steps_with_a_notice():
    sizes = {"gpus": 1, "slots_per_gpu": 8, "prefill_tokens": 1}
    with client_of_replay(made_up([(4, 0)]), steps_per_s=0, passes=1, **sizes) as client:
        thread = stepping(client.url)
        result = capture(client, steps=1000, stalled_s=0.5)
        thread.join()
        assert not client.demand().recording
    assert result.steps == 4
    assert "ENGINE_IDLE" in [notice.code for notice in result.notices]


def test_an_engine_without_traffic_leaves_nothing_to_plan_from():
    with client_of_replay(made_up([(4, 0)]), gpus=1, slots_per_gpu=8, steps_per_s=0) as client:
        with pytest.raises(EmptyProfile, match="was there traffic"):
            capture(client, seconds=0.1)
        assert not client.demand().recording


def test_somebody_elses_recording_is_left_alone():
    with client_of_replay(made_up([(4, 0)]), gpus=1, slots_per_gpu=8, steps_per_s=0) as client:
        client.start_demand(DemandOptions(window_steps=1))
        with pytest.raises(EngineBusy):
            capture(client, steps=5)
        assert client.demand().recording


def test_somebody_elses_recording_is_taken_over_when_asked_to():
    with client_of_replay(made_up([(6, 8)] * 4), gpus=2, slots_per_gpu=4, steps_per_s=300) as client:
        client.start_demand(DemandOptions(window_steps=10, owner="a forgotten one"))
        with pytest.raises(EngineBusy, match="a forgotten one") as caught:
            capture(client, steps=5)
        assert "--take-over" in caught.value.remedies[-1]
        result = capture(client, steps=5, take_over=True)
        state = client.stop_demand()
    assert [notice.code for notice in result.notices] == ["TAKEN_OVER"]
    assert "process" in state.owner


def test_a_recording_that_was_taken_over_is_neither_mixed_nor_stopped():
    serving = client_of_replay(made_up([(6, 8)] * 4), gpus=2, slots_per_gpu=4, steps_per_s=300)
    with serving as client, EngineClient(client.url) as other:
        taken = []

        def take_over(window) -> None:
            if not taken:
                other.stop_demand()
                taken.append(other.start_demand(DemandOptions(window_steps=1)))

        with pytest.raises(EngineBusy, match="somebody else"):
            capture(client, seconds=30, window_steps=1, on_window=take_over)
        assert client.demand().recording


# ------------------------------------------------------------------ engines that answer otherwise

STATE = DemandState("sglang", False, True, "abc", 0)


def scripted(*answers) -> dict:
    return {
        **healthy_routes(),
        ("POST", "/moeplan/demand/start"): answer(STATE.to_json()),
        ("POST", "/moeplan/demand/stop"): answer(replace(STATE, recording=False).to_json()),
        ("GET", "/moeplan/demand"): in_turn(*(answer(a.to_json()) for a in answers)),
    }


def captured_from(routes: dict):
    with engine_that_answers(routes) as (url, told), EngineClient(url) as client:
        try:
            return capture(client, steps=20), told
        finally:
            if ("POST", "/moeplan/demand/start") in told.requests:
                assert ("POST", "/moeplan/demand/stop") in told.requests


def test_windows_that_are_missing_are_told():
    found = replace(demand_answer(), recording=False)
    result, _ = captured_from(scripted(found, replace(found, windows=())))
    assert [window.index for window in result.windows] == [5]
    lost = next(notice for notice in result.notices if notice.code == "WINDOWS_LOST")
    assert "5 windows of 6" in lost.detail


def test_demand_of_another_shape_than_the_engine_is_refused():
    counts_LSE = np.ones((2, 2, 4), dtype=np.int64)
    found = demand_answer()
    phase = replace(found.windows[0].phases[0], counts_LSE=counts_LSE)
    other = replace(found, experts=4, windows=(replace(found.windows[0], phases=(phase,)),))
    with pytest.raises(EngineAnswerInvalid, match="4 experts"):
        captured_from(scripted(other))


def test_an_engine_that_never_stops_serving_windows_is_left_when_the_steps_are_there(monkeypatch):
    monkeypatch.setattr(capture_module, "MAX_RING_WINDOWS", 5)
    endless = replace(demand_answer(), recording=True, steps=21, remaining=7)
    result, told = captured_from(scripted(endless))
    assert told.requests.count(("GET", "/moeplan/demand")) == 10  # once while recording, once after stopping
    assert result.windows


def test_an_answer_that_unpacks_to_far_more_than_it_may_hold_is_refused_unread(monkeypatch):
    monkeypatch.setattr("profiler.engine.contract_demand.MAX_COUNTS", 10)
    monkeypatch.setattr("profiler.engine.contract_demand.decode_counts", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(EngineAnswerInvalid, match="at most 10 counts"):
        captured_from(scripted(demand_answer()))


def test_an_engine_that_cannot_record_says_why():
    abilities = {**health().abilities, "demand": Ability(works=False, reason="the hook is missing")}
    routes = {**scripted(), ("GET", "/moeplan/health"): answer(health(abilities=abilities).to_json())}
    with pytest.raises(PluginMissing, match="the hook is missing"):
        captured_from(routes)


def test_an_error_on_the_way_is_reported_before_one_of_stopping():
    broken = answer({"error": {"code": "ROUTING_NOT_SEEN", "detail": "layer 3."}}, status=500)
    routes = {
        **scripted(),
        ("GET", "/moeplan/demand"): broken,
        ("POST", "/moeplan/demand/stop"): answer({}, status=503),
    }
    with pytest.raises(EngineFailed, match="ROUTING_NOT_SEEN") as caught:
        captured_from(routes)
    assert "could not be stopped either" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "lengths",
    [
        {},
        {"steps": 1, "seconds": 1},
        {"steps": 0},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"steps": 1, "window_steps": 1, "window_seconds": 1},
        {"steps": 1, "window_steps": 0},
        {"steps": 1, "window_seconds": -1},
    ],
)
def test_lengths_that_cannot_be_are_refused_before_anything_is_recorded(lengths):
    with engine_that_answers(scripted()) as (url, told), EngineClient(url) as client, pytest.raises(BadOption):
        capture(client, **lengths)
    assert told.requests == []


# ------------------------------------------------------------------ what a capture is good for


def test_a_capture_becomes_a_trace_file_and_demand_with_measured_sources(tmp_path):
    trace = shipped(AFFINITY)
    result = captured_pass(trace, gpus=2, slots_per_gpu=20)
    import_trace([result], tmp_path / "captured.parquet")
    reader = open_parquet(tmp_path / "captured.parquet", ReadOptions())

    found = build_demand([reader], window_by=WindowBy(), gpus=2)
    prefill = build_demand([reader], window_by=WindowBy(), gpus=2, phase="prefill")

    expected_LSE = sum(chunk.tokens_LSE for chunk in result.chunks())
    assert found.demand.sources == "measured"
    assert found.header.engine == "moeplan-replay"
    np.testing.assert_array_equal(found.demand.tokens_WLSE.sum(axis=0), expected_LSE)
    assert 0 < prefill.demand.total_tokens < found.demand.total_tokens
    assert found.demand.windows == len(result.windows)
