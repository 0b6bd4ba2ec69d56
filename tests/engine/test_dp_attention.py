"""With DP attention every token has a home GPU: sources are counted right, and pushes work alike."""

from __future__ import annotations

from tests.engine.engine_server import EngineServer
from tests.engine.test_demand import assert_recording_equals_requests
from tests.engine.test_placement import pushed, random_map, read_placement, tensors_on_wrong_experts
from tests.engine.traffic import EIGHT_PROMPTS, greedy_at_once


def test_sources_are_the_requests_home_ranks(dp_engine: EngineServer) -> None:
    assert_recording_equals_requests(dp_engine, sources=2, seed=31)


def test_push_moves_weights_and_keeps_outputs(dp_engine: EngineServer) -> None:
    before = read_placement(dp_engine)
    reference = greedy_at_once(dp_engine)
    pushed(dp_engine, random_map(before, seed=32), layers_per_chunk=1)
    after = read_placement(dp_engine)
    assert after.ranks_agree
    assert tensors_on_wrong_experts(before, after) == set()
    assert greedy_at_once(dp_engine).equal_outputs(reference) == len(EIGHT_PROMPTS)
    pushed(dp_engine, before.map_LP.tolist())
    assert read_placement(dp_engine).checksums == before.checksums
