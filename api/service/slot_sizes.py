"""Slots per GPU against what they can buy in locality and what they leave of the key-value cache.

Nothing is planned here, so it takes moments: the share is the proven bound, that no layout passes and that nearest
dispatch reaches where balance asks nothing. ``moeplan size`` plans for some numbers of slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from api.errors import BadRequest
from api.service import plans as plan_service
from api.service.context import Service
from api.service.frames import demand_of, require_same_model
from api.store.models import Plan, Trace
from placement.bounds import local_gpu_bound
from placement.dispatch import Dispatch
from placement.errors import BadModelConfig
from placement.sizing import EngineMemory, ModelWeights
from placement.slots import smallest_slots_per_gpu
from profiler.model_file import model_names, read_model_config

MOST_ROWS = 24


def slot_sizes(service: Service, plan: Plan, trace: Trace, *, model: str, gpu_memory_gib: float) -> dict[str, Any]:
    """Return rows of slots with the bound on ``local_gpu`` and the cache's tokens, on the machine of a plan.

    Parameters
    ----------
    model
        Name of a model that comes with moeplan. No path: callers of the service may not read its files.

    Raises
    ------
    WrongState, BadRequest, BadModelConfig, BadOption
    """
    if model not in model_names():
        raise BadRequest(f"the model {model[:60]!r} is not known by name; there are {', '.join(model_names())}.")
    weights = ModelWeights.from_config(read_model_config(model))
    made = plan_service.made(service, plan)
    demand = demand_of(service, trace, gpus=made.topology.gpus, phase=None).require_not_empty()
    require_same_model(made, demand)
    if weights.shape.experts != demand.experts:
        raise BadModelConfig(
            f"{model} has {weights.shape.experts} experts, the recording {demand.experts}: is it the model's recording?"
        )
    gpus, all_to_all = made.topology.gpus, made.options.dispatch is not Dispatch.EVEN
    engine = EngineMemory(
        gpus=gpus, gpu_memory_gib=gpu_memory_gib, attention_ranks=gpus if all_to_all else 1, all_to_all=all_to_all
    )
    fewest = smallest_slots_per_gpu(experts=demand.experts, gpus=gpus)
    fits = min(demand.experts, engine.most_slots(weights, cache_tokens=1))
    most = max(fewest, fits, made.slots_per_gpu)
    spread = np.unique(np.linspace(fewest, most, num=min(MOST_ROWS, most - fewest + 1)).round().astype(int)).tolist()
    rows = []
    for slots in sorted({*spread, made.slots_per_gpu}):
        memory = engine.use(weights, slots_per_gpu=slots)
        rows.append(
            {
                "slots_per_gpu": slots,
                "local_gpu_bound": local_gpu_bound(demand, made.topology, slots).share if all_to_all else None,
                "expert_bytes": memory.expert_bytes,
                "cache_tokens": memory.all_cache_tokens,
                "fits": slots <= fits,
            }
        )
    return {"model": model, "gpu_memory_gib": gpu_memory_gib, "sources": demand.sources, "rows": rows}
