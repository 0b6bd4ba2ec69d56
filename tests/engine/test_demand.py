"""Demand counted in a live engine agrees with the engine's own account of single requests."""

from __future__ import annotations

import time
from itertools import pairwise

import httpx
import numpy as np
import pytest

from profiler.engine.contract import Placement, Refusal
from profiler.engine.contract_demand import DemandAnswer, DemandState, DemandWindow
from tests.engine.engine_server import EngineServer, read_server_info
from tests.engine.test_placement import pushed, random_map
from tests.engine.traffic import EIGHT_PROMPTS, Routed, ends_for, generate, prompts, routed_by_requests

LAYERS, EXPERTS, TOP_K = 3, 16, 4


def start(engine: EngineServer, **options: object) -> DemandState:
    response = engine.post("/moeplan/demand/start", options)
    assert response.status_code == 200, response.text
    return DemandState.from_json(response.json())


def stop(engine: EngineServer) -> DemandState:
    response = engine.post("/moeplan/demand/stop")
    assert response.status_code == 200, response.text
    return DemandState.from_json(response.json())


def fetch(engine: EngineServer, *, max_windows: int = 64) -> DemandAnswer:
    response = engine.get("/moeplan/demand", max_windows=max_windows)
    assert response.status_code == 200, response.text
    return DemandAnswer.from_json(response.json())


def refusal_code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, Refusal.from_json(response.json()).code


def summed(windows: tuple[DemandWindow, ...], *, sources: int) -> Routed:
    counts = {phase: np.zeros((LAYERS, sources, EXPERTS), dtype=np.int64) for phase in ("prefill", "decode")}
    tokens = {"prefill": 0, "decode": 0}
    for window in windows:
        for part in window.phases:
            counts[part.phase] += part.counts_LSE
            tokens[part.phase] += part.tokens
    return Routed(tokens, counts)


def assert_recording_equals_requests(engine: EngineServer, *, sources: int, seed: int) -> tuple[DemandWindow, ...]:
    """Record requests that end at different times, by length and by a stop token, and compare to the token."""
    assert not read_server_info(engine)["disable_overlap_schedule"], "the next step is launched before a request ends"
    requests = [(prompt, index % sources) for index, prompt in enumerate(prompts(6, seed=seed))]
    ends = ends_for(engine, requests)
    start(engine, window_steps=5)
    routed = routed_by_requests(
        engine, requests, layers=LAYERS, experts=EXPERTS, top_k=TOP_K, sources=sources, ends=ends
    )
    stop(engine)
    answer = fetch(engine)
    assert (answer.layers, answer.sources, answer.experts) == (LAYERS, sources, EXPERTS)
    assert (answer.remaining, answer.dropped_windows) == (0, 0)
    assert sum(window.unused_tokens for window in answer.windows) >= len(requests) // 2, "requests ended at a token"
    found = summed(answer.windows, sources=sources)
    assert found.tokens == routed.tokens
    for phase in ("prefill", "decode"):
        assert found.counts_LSE[phase].sum() > 0
        np.testing.assert_array_equal(found.counts_LSE[phase], routed.counts_LSE[phase])
    return answer.windows


def test_counts_equal_the_requests_routing(engine: EngineServer) -> None:
    windows = assert_recording_equals_requests(engine, sources=1, seed=21)
    assert [window.index for window in windows] == list(range(len(windows)))
    assert all(window.steps == 5 for window in windows[:-1])
    assert all(a.first_step + a.steps <= b.first_step for a, b in pairwise(windows))


def test_counts_are_of_experts_whatever_the_layout(engine: EngineServer) -> None:
    before = Placement.from_json(engine.get("/moeplan/placement").json())
    pushed(engine, random_map(before, seed=22))
    windows = assert_recording_equals_requests(engine, sources=1, seed=23)
    pushed(engine, before.map_LP.tolist())
    assert {window.generation for window in windows} == {before.generation + 1}


def test_a_window_is_fetched_once_oldest_first(engine: EngineServer) -> None:
    start(engine, window_steps=4)
    generate(engine, EIGHT_PROMPTS[0])
    stop(engine)
    first = fetch(engine, max_windows=1)
    assert [window.index for window in first.windows] == [0]
    assert first.remaining > 0
    rest = fetch(engine)
    assert [window.index for window in rest.windows] == list(range(1, 1 + first.remaining))
    assert fetch(engine).windows == ()


def test_a_full_ring_drops_the_oldest_and_says_so(engine: EngineServer) -> None:
    start(engine, window_steps=1, ring_windows=2)
    generate(engine, EIGHT_PROMPTS[0])
    state = stop(engine)
    answer = fetch(engine)
    assert [window.index for window in answer.windows] == [state.steps - 2, state.steps - 1]
    assert answer.dropped_windows == state.steps - 2


def test_a_second_recording_is_refused(engine: EngineServer) -> None:
    running = start(engine, window_steps=10, owner="process 7 on a host")
    second = engine.post("/moeplan/demand/start", {"window_steps": 1})
    assert refusal_code(second) == (409, "RECORDING_IN_PROGRESS")
    assert "process 7 on a host" in Refusal.from_json(second.json()).detail
    assert stop(engine).recording_id == running.recording_id


def test_a_recording_can_be_taken_over(engine: EngineServer) -> None:
    start(engine, window_steps=1, owner="process 7 on a host")
    generate(engine, EIGHT_PROMPTS[0])
    taken = start(engine, window_steps=100, owner="another", take_over=True)
    assert (taken.owner, taken.taken_over_from) == ("another", "process 7 on a host")
    answer = fetch(engine)
    assert (answer.recording_id, answer.windows) == (taken.recording_id, ()), "what it held is lost"
    stop(engine)


def test_a_recording_left_behind_ends_by_itself(engine: EngineServer) -> None:
    left = start(engine, window_steps=1, lease_seconds=0.5)
    generate(engine, EIGHT_PROMPTS[0])
    deadline = time.monotonic() + 60
    while engine.post("/moeplan/demand/start", {"window_steps": 1}).status_code == 409:
        assert time.monotonic() < deadline
        time.sleep(0.25)
    state = stop(engine)
    assert state.recording_id != left.recording_id
    assert state.taken_over_from == ""


@pytest.mark.parametrize("options", [{}, {"window_steps": 0}, {"window_steps": 1, "window_seconds": 1.0}])
def test_bad_options_are_refused(engine: EngineServer, options: dict[str, object]) -> None:
    assert refusal_code(engine.post("/moeplan/demand/start", options)) == (400, "BAD_MESSAGE")


def test_windows_by_seconds_close_on_all_ranks_alike(engine: EngineServer) -> None:
    start(engine, window_seconds=0.5)
    for prompt in EIGHT_PROMPTS:
        generate(engine, prompt)
    deadline = time.monotonic() + 30
    answer = fetch(engine)
    while not answer.windows and time.monotonic() < deadline:
        time.sleep(0.2)
        answer = fetch(engine)
    stop(engine)
    assert answer.windows
    assert all(window.steps > 0 for window in (*answer.windows, *fetch(engine).windows))


def test_a_recording_ends_by_itself(engine: EngineServer) -> None:
    start(engine, window_steps=3, max_steps=6)
    generate(engine, EIGHT_PROMPTS[0])
    answer = fetch(engine)
    assert not answer.recording
    assert answer.steps == 6
    assert [window.steps for window in answer.windows] == [3, 3]
