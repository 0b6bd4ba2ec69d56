"""Size from files: recordings, a model and a GPU's memory to rows of slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from api.loading import load_demand, read_options, read_topology
from api.step_option import step_of
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.hardware import Phase
from placement.notice import Notice
from placement.problem import Problem
from placement.sizing import EngineMemory, ModelWeights, SizeCurve, SizeQuestion, size_curve
from placement.slots import smallest_slots_per_gpu
from profiler.model_file import read_model_config

CACHE_BYTES = {"auto": 2.0, "fp8": 1.0}
"""Bytes of a value in the key-value cache (``--kv-cache-dtype``); models of 16 bits keep 16 bits."""


@dataclass(frozen=True, kw_only=True)
class SizeRequest:
    """What is asked of sizes; see the options of ``moeplan size`` for each field."""

    gpus: int
    model: str
    gpu_memory_gib: float
    nodes: int = 1
    topology_file: Path | None = None
    local_target: float = 0.6
    max_imbalance: float = 1.05
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC
    window_by: str = "file"
    sources: str = "auto"
    phase: Literal["prefill", "decode"] | None = None
    attention_ranks: int | None = None
    memory_fraction: float | None = None
    context_gib: float = 1.5
    kv_cache: Literal["auto", "fp8"] = "auto"
    page_tokens: int = 1
    draft_layers: int = 0
    min_cache_tokens: int = 1
    rows: int = 6
    hardware: str | None = None
    step_phase: Phase | None = None
    step_tokens: int | None = None
    seed: int = 0
    threads: int = 1


def size_from_files(
    paths: Sequence[Path], request: SizeRequest, *, progress: Callable[[float], None] | None = None
) -> tuple[SizeCurve, tuple[Notice, ...]]:
    """Read recordings and the model, and size.

    Raises
    ------
    CodedError
        Any of the packages' errors; NotEnoughMemory where nothing fits.
    """
    config = read_model_config(request.model)
    weights = ModelWeights.from_config(config)
    read = read_options(model=Path(request.model))
    topology, notices = read_topology(request.topology_file, gpus=request.gpus, nodes=request.nodes)
    loaded = load_demand(
        paths, read, gpus=topology.gpus, window_by=request.window_by, sources=request.sources, phase=request.phase
    )
    experts = loaded.demand.require_not_empty().experts
    problem = Problem(
        demand=loaded.demand,
        topology=topology,
        slots_per_gpu=smallest_slots_per_gpu(experts=experts, gpus=topology.gpus),
        max_imbalance=request.max_imbalance,
        dispatch=request.dispatch,
    )
    question = SizeQuestion(
        problem=problem,
        model=weights,
        engine=engine_of(request, weights),
        local_target=request.local_target,
        cache_tokens=request.min_cache_tokens,
        rows=request.rows,
        seed=request.seed,
        threads=request.threads,
        stream=loaded.tokens,
        step=step_of(request, read),
    )
    return size_curve(question, progress=progress), (*notices, *loaded.notices)


def engine_of(request: SizeRequest, model: ModelWeights) -> EngineMemory:
    """Return the engine asked for; by default every GPU has its own attention where there is an all-to-all."""
    all_to_all = request.dispatch is not Dispatch.EVEN
    usual = request.gpus if all_to_all else 1
    if request.draft_layers > model.shape.draft_layers:
        raise BadOption(
            f"--draft-layers is {request.draft_layers}; the model has {model.shape.draft_layers} draft (MTP) layers."
        )
    return EngineMemory(
        gpus=request.gpus,
        gpu_memory_gib=request.gpu_memory_gib,
        attention_ranks=usual if request.attention_ranks is None else request.attention_ranks,
        all_to_all=all_to_all,
        memory_fraction=request.memory_fraction,
        context_gib=request.context_gib,
        cache_bytes_per_value=CACHE_BYTES[request.kv_cache],
        page_tokens=request.page_tokens,
        draft_layers=request.draft_layers,
    )
