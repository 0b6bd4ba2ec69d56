"""What would fit where a model does not."""

from __future__ import annotations

from dataclasses import replace

from placement.errors import NotEnoughMemory
from placement.sizing.engine_memory import GIB, MOST_MEMORY_GIB, EngineMemory
from placement.sizing.model_weights import ModelWeights
from placement.slots import smallest_slots_per_gpu

MOST_GPUS = 4096


def not_enough_memory(model: ModelWeights, engine: EngineMemory, *, experts: int, cache_tokens: int) -> NotEnoughMemory:
    """Say what is short, and which machines would do."""
    slots = smallest_slots_per_gpu(experts=experts, gpus=engine.gpus)
    use = engine.use(model, slots_per_gpu=slots)
    may_take_gib = (engine.gpu_memory_gib - engine.context_gib) * engine.fraction(model)
    weights_gib = (use.expert_bytes + use.other_weight_bytes) / GIB
    cache_gib = cache_tokens * engine.token_bytes(model) / GIB
    return NotEnoughMemory(
        f"the fewest slots ({slots} per GPU) need {weights_gib:.1f} GiB of weights ({use.expert_bytes / GIB:.1f} for "
        f"experts) and {cache_gib:.1f} GiB of cache for {cache_tokens} tokens on each of {engine.gpus} GPUs; weights "
        f"and cache may take {may_take_gib:.1f} of {engine.gpu_memory_gib:g} GiB.",
        remedies=tuple(_remedies(model, engine, experts=experts, cache_tokens=cache_tokens)),
    )


def _remedies(model: ModelWeights, engine: EngineMemory, *, experts: int, cache_tokens: int) -> list[str]:
    found = []
    gpus = _gpus_that_do(model, engine, experts=experts, cache_tokens=cache_tokens)
    if gpus is not None:
        found.append(f"{gpus} GPUs of {engine.gpu_memory_gib:g} GiB would do.")
    memory_gib = _memory_that_does(model, engine, experts=experts, cache_tokens=cache_tokens)
    if memory_gib is not None:
        found.append(f"{engine.gpus} GPUs of {memory_gib} GiB would do.")
    if engine.use(model, slots_per_gpu=smallest_slots_per_gpu(experts=experts, gpus=engine.gpus)).cache_tokens > 0:
        found.append("A smaller --min-cache-tokens would do.")
    if model.expert.arithmetic == "bf16" and model.expert.weight_bytes >= 6 * model.expert.hidden * model.expert.width:
        found.append("A checkpoint with fp8 experts halves them.")
    return found


def _fits(model: ModelWeights, engine: EngineMemory, *, experts: int, cache_tokens: int) -> bool:
    fewest = smallest_slots_per_gpu(experts=experts, gpus=engine.gpus)
    return engine.most_slots(model, cache_tokens=cache_tokens) >= fewest


def _gpus_that_do(model: ModelWeights, engine: EngineMemory, *, experts: int, cache_tokens: int) -> int | None:
    """Return the first multiple of the GPUs there are that fits, with data-parallel ranks of the same size."""
    factor = 2
    while factor * engine.gpus <= min(MOST_GPUS, experts * engine.gpus):
        more = replace(engine, gpus=factor * engine.gpus, attention_ranks=factor * engine.attention_ranks)
        if _fits(model, more, experts=experts, cache_tokens=cache_tokens):
            return more.gpus
        factor += 1
    return None


def _memory_that_does(model: ModelWeights, engine: EngineMemory, *, experts: int, cache_tokens: int) -> int | None:
    """Return a whole number of GiB per GPU that fits while one less does not."""
    short, enough = int(engine.gpu_memory_gib), int(MOST_MEMORY_GIB)
    if not _fits(model, replace(engine, gpu_memory_gib=float(enough)), experts=experts, cache_tokens=cache_tokens):
        return None
    while enough - short > 1:
        middle = (short + enough) // 2
        bigger = replace(engine, gpu_memory_gib=float(middle))
        fits = _fits(model, bigger, experts=experts, cache_tokens=cache_tokens)
        short, enough = (short, middle) if fits else (middle, enough)
    return enough
