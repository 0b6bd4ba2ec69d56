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


def test_cache_tokens_are_those_that_the_engine_reports(one_engine: OneEngine, random_model: Path) -> None:
    """Both ranks share one memory here, so its level moves between the engine's two readings: within 3 %."""
    log = one_engine.get(UNCAPPED).log_file.read_text()
    free_gib = min(float(each) for each in re.findall(r"Load weight begin\. avail mem=([\d.]+) GB", log))
    reported = int(re.findall(r"max_total_num_tokens=(\d+)", log)[-1])
    # The kit runs bf16 checkpoints in float32.
    config = {**read_model_config(random_model), "torch_dtype": "float32"}
    engine = EngineMemory(
        gpus=GPUS,
        gpu_memory_gib=free_gib,
        context_gib=0.0,
        attention_ranks=1,
        all_to_all=False,
        memory_fraction=FRACTION,
        cache_bytes_per_value=4.0,
    )
    weights = ModelWeights.from_config(config)
    slots = (weights.shape.experts + REDUNDANT) // GPUS
    assert engine.use(weights, slots_per_gpu=slots).cache_tokens == pytest.approx(reported, rel=0.03)
    one_engine.stop()
