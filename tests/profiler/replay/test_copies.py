"""Copies that the ruler expects against those that the replay engine's own dispatch makes of recorded tokens."""

from __future__ import annotations

import numpy as np
import pytest

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import Problem
from placement.score import count_copies
from placement.solver import solve
from placement.tokens import NO_EXPERT, UNKNOWN_STEP, Tokens
from placement.topology import Topology
from profiler.recordings import MIXED
from profiler.replay.dispatch import Ranks, dispatcher_class
from profiler.trace import TokenChunk
from tests.profiler.replay.traces import shipped

MOST_TOKENS = 4000


def _tokens(gpus: int) -> Tokens:
    chunk = next(chunk for chunk in shipped(MIXED).chunks() if isinstance(chunk, TokenChunk))
    topk_LTK = chunk.topk_LTK[:, :MOST_TOKENS]
    count = topk_LTK.shape[1]
    return Tokens(
        experts_LTK=topk_LTK,
        experts=32,
        home_T=chunk.request_id_T[:MOST_TOKENS] % gpus,
        window_T=np.zeros(count, dtype=np.int32),
        request_T=chunk.request_id_T[:MOST_TOKENS],
        step_T=np.full(count, UNKNOWN_STEP),
        phase_T=np.zeros(count, dtype=np.uint8),
    )


def _layout(tokens: Tokens, topology: Topology, slots_per_gpu: int) -> Layout:
    counts_LE = [
        np.bincount(ids.ravel(), minlength=32) for ids in np.where(tokens.experts_LTK < 32, tokens.experts_LTK, 0)
    ]
    return solve(Problem(Demand.uniform(np.array(counts_LE)), topology, slots_per_gpu), time_limit_s=1).layout


def _sent(slots_LTK: np.ndarray, home_T: np.ndarray, *, slots_per_gpu: int, gpus: int) -> np.ndarray:
    """Count, token by token, the GPUs other than its own that a token's slots are on; [L, S, G]."""
    sent_LSG = np.zeros((len(slots_LTK), gpus, gpus))
    for layer, slots_TK in enumerate(slots_LTK):
        for home, slots_K in zip(home_T.tolist(), slots_TK.tolist(), strict=True):
            for gpu in {slot // slots_per_gpu for slot in slots_K} - {home}:
                sent_LSG[layer, home, gpu] += 1
    return sent_LSG


@pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.NEAREST_STATIC])
@pytest.mark.parametrize(("gpus", "nodes"), [(4, 1), (4, 2)])
def test_expected_copies_are_those_that_are_sent(dispatch, gpus, nodes):
    slots_per_gpu, topology = 12, Topology(gpus, nodes)
    tokens = _tokens(gpus)
    assert not (tokens.experts_LTK == NO_EXPERT).any()
    layout = _layout(tokens, topology, slots_per_gpu)
    engine = dispatcher_class(dispatch=dispatch.removeprefix("nearest-"), a2a_backend="deepep").for_map(
        layout.slot_to_expert_LP, experts=32, ranks=Ranks(gpus, topology.gpus_per_node, slots_per_gpu)
    )

    slots_LTK = engine.slots_of(
        tokens.experts_LTK.astype(np.int64), source_T=tokens.home_T, random_picks=np.random.default_rng(0)
    )
    sent_LSG = _sent(slots_LTK, tokens.home_T, slots_per_gpu=slots_per_gpu, gpus=gpus)
    expected = count_copies({"it": layout}, [tokens], topology, dispatch=dispatch, windows=1)["it"].gpu_WLSG[0]

    if dispatch is Dispatch.NEAREST_STATIC:
        np.testing.assert_allclose(expected, sent_LSG)
    else:
        # Draws: each cell is a sum of at most MOST_TOKENS independent ones; five standard deviations.
        assert np.abs(expected - sent_LSG).max() < 5 * np.sqrt(MOST_TOKENS / 4)
        assert sent_LSG.sum() == pytest.approx(expected.sum(), rel=0.01)
