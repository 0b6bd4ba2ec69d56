"""Sizes beside what a running SGLang allocates: weights, the bytes of a cached token, and how many fit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from placement.sizing import EngineMemory, ModelWeights
from placement.sizing.engine_memory import GIB
from profiler.model_file import read_model_config
from tests.engine.conftest import OneEngine
from tests.engine.engine_server import REDUNDANT, EngineServer, EngineSetup

FRACTION = 0.1
"""Of the machine's free memory, for each of both ranks."""

UNCAPPED = EngineSetup(
    arguments=("--mem-fraction-static", str(FRACTION), "--max-total-tokens", str(2**31 - 1)),
    plugins=("cpu_shim", "faults", "memory_facts"),
)
GPUS = 2
WITHIN = 0.03
"""Relative difference that is allowed between the tokens of ``moeplan size`` and the engine's."""


def engine_with(memory_gib: float) -> EngineMemory:
    return EngineMemory(
        gpus=GPUS,
        gpu_memory_gib=memory_gib,
        context_gib=0.0,
        attention_ranks=1,
        all_to_all=False,
        memory_fraction=FRACTION,
        cache_bytes_per_value=4.0,  # the kit computes in float32
    )


@pytest.fixture
def uncapped_engine(one_engine: OneEngine) -> EngineServer:
    return one_engine.get(UNCAPPED)


@pytest.fixture
def weights(random_model: Path) -> ModelWeights:
    return ModelWeights.from_config(read_model_config(random_model))


def facts_of_ranks(engine: EngineServer) -> list[dict[str, int]]:
    return [json.loads((engine.log_file.parent / f"memory-{rank}.json").read_text()) for rank in range(GPUS)]


def slots_per_gpu(weights: ModelWeights) -> int:
    return (weights.shape.experts + REDUNDANT) // GPUS


def test_weights_take_what_the_engine_has_loaded(uncapped_engine: EngineServer, weights: ModelWeights) -> None:
    use = engine_with(1.0).use(weights, slots_per_gpu=slots_per_gpu(weights))
    for rank in facts_of_ranks(uncapped_engine):
        assert use.expert_bytes + use.other_weight_bytes == pytest.approx(rank["weight_bytes"], rel=0.001)


def test_a_cached_token_takes_what_the_engine_allocates_for_it(
    uncapped_engine: EngineServer, weights: ModelWeights
) -> None:
    sizes = re.findall(
        r"#tokens: (\d+), K size: ([\d.]+) GB, V size: ([\d.]+) GB", uncapped_engine.log_file.read_text()
    )
    tokens, keys_gib, values_gib = (float(each) for each in sizes[-1])
    allocated_bytes = (keys_gib + values_gib) * GIB / tokens
    assert engine_with(1.0).token_bytes(weights) == pytest.approx(allocated_bytes, rel=0.01)


def test_cache_tokens_are_those_that_the_engine_reports(uncapped_engine: EngineServer, weights: ModelWeights) -> None:
    """On a CPU both ranks and all other processes share the memory, and the engine takes the difference of two readings
    of what is free. So the memory goes in as the engine found it; weights and tokens are ours."""
    reported = int(re.findall(r"max_total_num_tokens=(\d+)", uncapped_engine.log_file.read_text())[-1])
    rank = facts_of_ranks(uncapped_engine)[0]
    memory_gib = (rank["cache_bytes"] + rank["weight_bytes"]) / FRACTION / GIB
    use = engine_with(memory_gib).use(weights, slots_per_gpu=slots_per_gpu(weights))
    assert use.cache_tokens == pytest.approx(reported, rel=WITHIN)
