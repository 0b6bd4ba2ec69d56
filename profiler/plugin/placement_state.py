"""What a rank reports of the layout it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.map_rules import layout_hash
from profiler.plugin import checksums
from profiler.plugin.rank_view import RankView, location_metadata, moe_layers


def current_map(metadata: Any) -> npt.NDArray[np.int32]:
    """Return the map that a rank routes by, int32 [L, P]."""
    map_LP: npt.NDArray[np.int32] = metadata.physical_to_logical_map.cpu().numpy().astype(np.int32)
    return map_LP


def rank_placement(model_runner: Any, server_args: Any, view: RankView) -> dict[str, Any]:
    """Return this rank's part of ``Placement``; the map itself only from rank 0, its hash from all."""
    metadata = location_metadata()
    map_LP = current_map(metadata)
    layers = moe_layers(model_runner.model)
    modules = checksums.expert_modules(model_runner.model)
    config = model_runner.model_config
    part: dict[str, Any] = {
        "rank": view.ep_rank,
        "layout_hash": layout_hash(map_LP),
        "host_copy_agrees": bool((metadata.physical_to_logical_map_cpu.numpy() == map_LP).all()),
        "free_bytes": free_bytes(),
        "expert_bytes": checksums.bytes_per_expert(modules[layers[0]]) if layers and modules else 0,
    }
    if view.tp_rank == 0:
        part |= {
            "map": map_LP.tolist(),
            "model": str(getattr(server_args, "served_model_name", None) or server_args.model_path),
            "layers": int(metadata.num_layers),
            "moe_layers": list(layers),
            "experts": int(metadata.num_logical_experts),
            "slots": int(metadata.num_physical_experts),
            "top_k": getattr(config.hf_text_config, "num_experts_per_tok", None),
            "ep_size": view.ep_size,
            "nodes": view.nodes,
            "dispatch": view.dispatch,
            "a2a_backend": view.a2a_backend,
            "quantization": getattr(config, "quantization", None),
            "phase": phase_role(server_args),
        }
    return part


def rank_checksums(model_runner: Any, *, layers: tuple[int, ...]) -> dict[str, Any]:
    """Return the checksums of this rank's slots of some layers: layer -> tensor -> texts."""
    modules = checksums.expert_modules(model_runner.model)
    return {str(layer): checksums.slot_checksums(modules[layer]) for layer in layers}


def free_bytes() -> int | None:
    """Return the memory a transfer can still take on this rank's GPU, None where the device does not say."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, _total = torch.cuda.mem_get_info()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(free + cached)


def phase_role(server_args: Any) -> str:
    """Return what the engine serves: prefill, decode or both."""
    mode = str(getattr(server_args, "disaggregation_mode", "null"))
    return mode if mode in ("prefill", "decode") else "both"
