"""Tokens that an engine's key-value cache holds, beside what ``moeplan size`` says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.commands import moeplan
from tests.gpu.machine import Machine
from tests.gpu.results import Results
from tests.gpu.server import Engine, EngineSetup

_FREE = re.compile(r"Load weight begin\. avail mem=([\d.]+) GB")
_LOADED = re.compile(r"Load weight end\..* mem usage=([\d.]+) GB")
_TOKENS = re.compile(r"\bmax_total_num_tokens=(\d+)")
CACHE_VALUE_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class LoggedMemory:
    """What an engine's log says.

    Attributes
    ----------
    free_gib : float
        Free before weights are loaded, on the GPU with the least.
    weights_gib : float
        That loading took, on the GPU with the most.
    tokens : int
        ``max_total_num_tokens``, the last one reported.
    """

    free_gib: float
    weights_gib: float
    tokens: int


def logged_memory(text: str) -> LoggedMemory:
    """Read a log.

    Raises
    ------
    ValueError
        Naming what it does not say.
    """
    free, loaded, tokens = (pattern.findall(text) for pattern in (_FREE, _LOADED, _TOKENS))
    for found, what in ((free, "free memory before loading"), (loaded, "memory of weights"), (tokens, "tokens")):
        if not found:
            raise ValueError(f"the engine's log says no {what}.")
    return LoggedMemory(min(map(float, free)), max(map(float, loaded)), int(tokens[-1]))


def sized_setup(name: str, model: Path, *, redundant: int, fraction: float, extra: tuple[str, ...]) -> EngineSetup:
    """Return an engine that takes what memory it finds for its cache."""
    arguments = ("--mem-fraction-static", str(fraction), *extra)
    without = ("--max-total-tokens",)
    return EngineSetup(name, model, redundant, dp_attention=True, arguments=arguments, without=without)


def measure_size(machine: Machine, engine: Engine, results: Results, *, fraction: float) -> None:
    """Hold the tokens that ``moeplan size`` predicts against those that the engine reports.

    Raises
    ------
    RuntimeError, ValueError
        The command failed, or the log does not say what is needed.
    """
    setup = engine.setup
    logged = logged_memory(engine.log.read_text(errors="replace"))
    config = json.loads((setup.model / "config.json").read_text())
    slots_per_gpu = (config["num_experts"] + setup.redundant) // machine.gpus
    recording = machine.root / setup.name / "ones.npz"
    np.savez(recording, counts=np.ones((1, config["num_hidden_layers"], config["num_experts"]), dtype=np.int64))
    said = moeplan(
        machine,
        *("size", recording, "--model", setup.model / "config.json", "--gpus", machine.gpus, "--dispatch", "even"),
        *("--gpu-memory-gib", logged.free_gib, "--context-gib", 0, "--mem-fraction-static", fraction),
        *("--attention-ranks", machine.gpus, "--rows", config["num_experts"]),
    )
    row = row_of(said, slots_per_gpu)
    # An engine that computes in float32, in a rehearsal only, caches four bytes where 16-bit models cache two.
    predicted = row["cache_tokens"] * CACHE_VALUE_BYTES["bfloat16"] // CACHE_VALUE_BYTES[machine.model_dtype]
    results.add(
        "cache size",
        engine=setup.name,
        model=setup.model.name,
        slots_per_gpu=slots_per_gpu,
        fraction=fraction,
        free_gib=logged.free_gib,
        weights_gib=logged.weights_gib,
        predicted_weights_gib=round((row["expert_bytes"] + row["other_weight_bytes"]) / 2**30, 3),
        tokens=logged.tokens,
        predicted_tokens=predicted,
        relative_error=round(predicted / logged.tokens - 1, 5),
    )


def row_of(said: dict[str, Any], slots_per_gpu: int) -> dict[str, Any]:
    """Return the memory of one number of slots in what ``moeplan size --json`` printed."""
    for row in said["rows"]:
        if row["memory"]["slots_per_gpu"] == slots_per_gpu:
            return dict(row["memory"])
    raise ValueError(f"moeplan size said nothing of {slots_per_gpu} slots per GPU.")
