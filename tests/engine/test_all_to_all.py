"""Behind an all-to-all backend the engine serves a token on its home GPU where it can: demand predicts that share."""

from __future__ import annotations

import numpy as np

from profiler.engine.contract import Placement
from tests.engine.engine_server import EngineServer
from tests.engine.test_demand import EXPERTS, LAYERS, TOP_K, fetch, start, stop, summed
from tests.engine.test_placement import pushed, read_placement, tensors_on_wrong_experts
from tests.engine.traffic import EIGHT_PROMPTS, NEW_TOKENS, greedy_at_once, prompts, routed_by_requests

REQUESTS = [(prompt, index % 2) for index, prompt in enumerate(prompts(6, seed=41))]
A_TOKEN_MORE = [{"new_tokens": NEW_TOKENS + 1} for _ in REQUESTS]


def counted_pairs(engine: EngineServer) -> tuple[int, int]:
    """Return the pairs of token and slot that stayed on their own rank, and all, since the engine started."""
    ranks = engine.post("/dumper/test_pairs").json()[:2]
    return sum(rank["own"] for rank in ranks), sum(rank["all"] for rank in ranks)


def layout_that_holds(placement: Placement, wanted_SE: np.ndarray) -> list[list[int]]:
    """Return a layout whose rank s holds, beside its share of all experts, those that ``wanted_SE`` ranks highest."""
    half, slots = placement.experts // 2, placement.slots // placement.ep_size
    rows = []
    for layer in range(placement.layers):
        hosts = []
        for rank in range(2):
            own = list(range(rank * half, (rank + 1) * half))
            extra = [int(e) for e in np.argsort(-wanted_SE[layer, rank], kind="stable") if int(e) not in own]
            hosts += own + extra[: slots - half]
        rows.append(hosts)
    return rows


def test_own_share_is_what_demand_and_layout_say(all_to_all_engine: EngineServer) -> None:
    engine = all_to_all_engine
    before = read_placement(engine)
    reference = greedy_at_once(engine)
    sent = {"layers": LAYERS, "experts": EXPERTS, "top_k": TOP_K, "sources": 2}
    hot_LSE = sum(routed_by_requests(engine, REQUESTS, **sent).counts_LSE.values())
    longer_LSE = sum(routed_by_requests(engine, REQUESTS, **sent, ends=A_TOKEN_MORE).counts_LSE.values())

    pushed(engine, layout_that_holds(before, np.asarray(hot_LSE)))
    after = read_placement(engine)
    assert tensors_on_wrong_experts(before, after) == set()

    start(engine, window_steps=4)
    own_before, all_before = counted_pairs(engine)
    routed = routed_by_requests(engine, REQUESTS, **sent)
    own_after, all_after = counted_pairs(engine)
    stop(engine)
    windows = fetch(engine).windows
    demand = summed(windows, sources=2)

    for phase, expected_LSE in routed.counts_LSE.items():
        np.testing.assert_array_equal(demand.counts_LSE[phase], expected_LSE)
    slots = after.slots // 2
    held_LSE = np.zeros((LAYERS, 2, EXPERTS), dtype=bool)
    for layer in range(LAYERS):
        for rank in range(2):
            held_LSE[layer, rank, after.map_LP[layer, rank * slots : (rank + 1) * slots]] = True
    # With the overlap schedule 0.5.16 also computes the token behind every request's last one and throws it away;
    # 0.5.23 knows beforehand which requests end by length.
    unused_tokens = sum(window.unused_tokens for window in windows)
    assert unused_tokens in (0, len(REQUESTS))
    computed_LSE = longer_LSE if unused_tokens else sum(demand.counts_LSE.values())
    assert all_after - all_before == int(np.sum(computed_LSE))
    assert own_after - own_before == int(np.sum(computed_LSE * held_LSE))

    assert greedy_at_once(engine).equal_outputs(reference) == len(EIGHT_PROMPTS)
    pushed(engine, before.map_LP.tolist())
    assert read_placement(engine).checksums == before.checksums
