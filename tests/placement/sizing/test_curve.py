from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadModelConfig, BadOption, NotEnoughMemory
from placement.problem import Problem
from placement.sizing import EngineMemory, ModelWeights, SizeQuestion, size_curve
from placement.step_time import Step
from placement.topology import Topology
from tests.placement.hardware.profiles import EXPERT, PROFILE
from tests.placement.sizing.models import PLAIN
from tests.placement.token_traces import some_tokens

MODEL = ModelWeights.from_config(PLAIN)


def question(*, spare_experts: float, cache_tokens: int = 10, target: float = 0.6) -> SizeQuestion:
    """Four GPUs with room for so many experts per layer beside everything else and the cache."""
    tokens_LE = np.array([[40, 30, 10, 5, 5, 4, 3, 3], [3, 3, 4, 5, 5, 10, 30, 40]])
    problem = Problem(Demand.uniform(tokens_LE), Topology(4), 2)
    engine = EngineMemory(gpus=4, gpu_memory_gib=1.0, attention_ranks=4, memory_fraction=0.5, context_gib=0.0)
    others = engine.use(MODEL, slots_per_gpu=0).other_weight_bytes
    wanted = others + cache_tokens * 256 + spare_experts * 2 * MODEL.expert.weight_bytes
    engine = replace(engine, gpu_memory_gib=2 * wanted / 2**30)
    return SizeQuestion(
        problem=problem, model=MODEL, engine=engine, local_target=target, cache_tokens=cache_tokens, rows=4
    )


def test_more_slots_are_more_local_and_leave_less_cache() -> None:
    curve = size_curve(question(spare_experts=6.5))
    assert [row.memory.slots_per_gpu for row in curve.rows] == [2, 3, 5, 6]
    assert curve.most_slots == 6
    local = [row.local_gpu for row in curve.rows]
    assert local == sorted(local)
    tokens = [row.memory.cache_tokens for row in curve.rows]
    assert tokens == sorted(tokens, reverse=True)
    for row in curve.rows:
        assert row.fits
        assert row.local_gpu is not None
        assert row.local_gpu_bound is not None
        assert row.local_gpu <= row.local_gpu_bound + 1e-9
        assert row.memory.cache_tokens >= 10


def test_the_first_row_that_reaches_the_target_is_named() -> None:
    curve = size_curve(question(spare_experts=6.5, target=0.6))
    assert curve.target_row is not None
    assert curve.target_row.local_gpu is not None
    assert curve.target_row.local_gpu >= 0.6
    assert curve.slots_for_target == curve.target_row.memory.slots_per_gpu
    below = [row for row in curve.rows if row.memory.slots_per_gpu < curve.target_row.memory.slots_per_gpu]
    assert all(row.local_gpu is not None and row.local_gpu < 0.6 for row in below)


def test_a_target_that_cannot_fit_keeps_its_row_and_offers_the_best_there_is() -> None:
    curve = size_curve(question(spare_experts=3.5, target=0.9))
    assert curve.target_row is None
    assert curve.slots_for_target is not None
    assert curve.slots_for_target > curve.most_slots == 3
    assert [(row.memory.slots_per_gpu, row.fits) for row in curve.rows][-1] == (curve.slots_for_target, False)
    assert curve.best_local_row is not None
    assert curve.best_local_row.memory.slots_per_gpu == 3
    assert curve.best_local_row.local_node == 1.0


def test_without_all_to_all_nothing_is_local() -> None:
    asked = question(spare_experts=4.5)
    curve = size_curve(replace(asked, problem=replace(asked.problem, dispatch=Dispatch.EVEN)))
    assert curve.slots_for_target is None
    assert curve.best_local_row is None
    assert all(row.imbalance is not None for row in curve.rows)


def test_what_cannot_fit_is_refused_with_what_would() -> None:
    with pytest.raises(NotEnoughMemory, match="the fewest slots") as caught:
        size_curve(question(spare_experts=1.5))
    assert any("GPUs of" in remedy for remedy in caught.value.remedies)


def test_the_machines_offered_do() -> None:
    asked = question(spare_experts=1.5)
    with pytest.raises(NotEnoughMemory) as caught:
        size_curve(asked)
    more = next(remedy for remedy in caught.value.remedies if not remedy.startswith("4 GPUs"))
    gpus = int(more.split()[0])
    wide = replace(asked.engine, gpus=gpus, attention_ranks=gpus)
    problem = Problem(asked.problem.demand, Topology(gpus), 1)
    assert size_curve(replace(asked, engine=wide, problem=problem)).rows


def test_the_recording_must_be_the_models() -> None:
    asked = question(spare_experts=4.5)
    with pytest.raises(BadModelConfig, match="the recording has 4 experts, the model 8"):
        replace(asked, problem=Problem(Demand.uniform([[1, 2, 3, 4]]), Topology(4), 2))


def test_rows_and_cache_start_at_one() -> None:
    with pytest.raises(BadOption, match="both start at 1"):
        replace(question(spare_experts=4.5), rows=0)


def test_times_of_rows_rest_on_the_copies_of_the_trace() -> None:
    """Two experts that are always chosen together: counted copies are fewer than independent choices would send."""
    tokens = some_tokens(np.array([[[0, 1], [2, 3], [4, 5], [6, 7]] * 10] * 2), experts=8)
    demand = Demand.uniform(np.full((2, 8), 10))
    asked = question(spare_experts=4.5)
    step = Step(PROFILE, "prefill", EXPERT, top_k=2, tokens_per_gpu=10)
    asked = replace(asked, problem=replace(asked.problem, demand=demand), step=step, rows=1)
    counted, expected = size_curve(replace(asked, stream=[tokens])).rows[0], size_curve(asked).rows[0]
    assert counted.moe_layer is not None
    assert expected.moe_layer is not None
    assert (counted.moe_layer.basis, expected.moe_layer.basis) == ("tokens", "counts")
    assert counted.memory == expected.memory
    assert counted.moe_layer.expert_s == expected.moe_layer.expert_s
    assert counted.moe_layer.all_to_all_s != expected.moe_layer.all_to_all_s
