"""Sizes beside what a running SGLang reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from placement.sizing import EngineMemory, ModelWeights
from profiler.model_file import read_model_config
from tests.engine.conftest import OneEngine
from tests.engine.engine_server import REDUNDANT, EngineSetup

FRACTION = 0.1
"""Of the machine's free memory, for each of both ranks."""

UNCAPPED = EngineSetup(arguments=("--mem-fraction-static", str(FRACTION), "--max-total-tokens", str(2**31 - 1)))
GPUS = 2


def weights_of(model: Path) -> ModelWeights:
    # The kit computes in float32.
    return ModelWeights.from_config({**read_model_config(model), "torch_dtype": "float32"})


def engine_with(free_gib: float) -> EngineMemory:
    return EngineMemory(
        gpus=GPUS,
        gpu_memory_gib=free_gib,
        context_gib=0.0,
        attention_ranks=1,
        all_to_all=False,
        memory_fraction=FRACTION,
        cache_bytes_per_value=4.0,
    )


def test_a_cached_token_takes_what_the_engine_allocates_for_it(one_engine: OneEngine, random_model: Path) -> None:
    log = one_engine.get(UNCAPPED).log_file.read_text()
    sizes = re.findall(r"#tokens: (\d+), K size: ([\d.]+) GB, V size: ([\d.]+) GB", log)
    tokens, keys_gib, values_gib = (float(each) for each in sizes[-1])
    allocated_bytes = (keys_gib + values_gib) * 2**30 / tokens
    assert engine_with(1.0).token_bytes(weights_of(random_model)) == pytest.approx(allocated_bytes, rel=0.01)


def test_cache_tokens_are_those_that_the_engine_reports(one_engine: OneEngine, random_model: Path) -> None:
    """Within 3 % on a machine that does nothing else: ranks and all other processes share its memory, and the engine
    takes the difference of two readings."""
    log = one_engine.get(UNCAPPED).log_file.read_text()
    free_gib = min(float(each) for each in re.findall(r"Load weight begin\. avail mem=([\d.]+) GB", log))
    reported = int(re.findall(r"max_total_num_tokens=(\d+)", log)[-1])
    weights = weights_of(random_model)
    slots = (weights.shape.experts + REDUNDANT) // GPUS
    one_engine.stop()
    assert engine_with(free_gib).use(weights, slots_per_gpu=slots).cache_tokens == pytest.approx(reported, rel=0.03)
