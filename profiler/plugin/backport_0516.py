"""What newer versions have built in and SGLang 0.5.16 lacks: one choice of replicas for all ranks, numbered routers.

Without an all-to-all backend Qwen's MoE models never turn expert ids into slots there, each rank would prefer its own
replicas, and replicas are drawn at random per rank. All ranks see all tokens in that mode and add their partial
results, so a rank-dependent choice counts an expert with replicas on two ranks twice. Three hooks make the choice the
same on all ranks: by the token's row, over all replicas. With an all-to-all backend they pass everything through.

The routers of models that give them no layer (Mixtral's and OLMoE's among them) do not know it there either: with
``--enable-return-routed-experts`` the first request ends the engine, and without it nothing can be counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiler.plugin.rank_view import location_metadata
from profiler.plugin.versions import EngineVersion

BACKPORTED = ((0, 5, 16),)
"""Versions that these hooks were tested on."""


def is_backported(version: EngineVersion) -> bool:
    """Whether the hooks below are installed on this version."""
    return version.release in BACKPORTED


def targets() -> dict[str, Callable[..., Any]]:
    """Return dotted path -> AROUND hook."""
    paths = {
        f"sglang.srt.layers.moe.topk.TopK.{method}": give_dispatch_info
        for method in ("forward_cuda", "forward_native", "forward_cpu")
    }
    return paths | {
        "sglang.srt.eplb.expert_location._compute_logical_to_all_physical_map": keep_all_replicas,
        "sglang.srt.eplb.expert_location_dispatch._topk_ids_logical_to_physical_dynamic": choose_by_row,
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model": number_routers,
    }


def give_dispatch_info(
    original: Callable[..., Any], topk: Any, hidden_states: Any, router_logits: Any, *args: Any, **kwargs: Any
) -> Any:
    """Hand the layer's slots to a router whose model does not."""
    if kwargs.get("expert_location_dispatch_info") is None and _maps_here(topk):
        from sglang.srt.eplb.expert_location_dispatch import ExpertLocationDispatchInfo

        kwargs["expert_location_dispatch_info"] = ExpertLocationDispatchInfo.init_new(layer_id=topk.layer_id)
    return original(topk, hidden_states, router_logits, *args, **kwargs)


def _maps_here(topk: Any) -> bool:
    metadata = location_metadata()
    return (
        metadata is not None
        and topk.layer_id is not None
        and topk.layer_id < metadata.num_layers
        and topk.topk_config.allow_routed_experts_capture  # False for draft layers, which keep their own numbering
        and not _all_to_all()
    )


def number_routers(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Tell a router that does not know its layer which one the experts beside it belong to."""
    loaded = original(runner, *args, **kwargs)
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.layers.moe.topk import TopK

    for block in runner.model.modules():
        routers = [part for part in block.children() if isinstance(part, TopK)]
        experts = [part for part in block.children() if isinstance(part, FusedMoE)]
        if len(routers) == len(experts) == 1 and routers[0].layer_id is None:
            routers[0].layer_id = experts[0].layer_id
    return loaded


def keep_all_replicas(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Leave out the per-rank preference for own replicas."""
    if not _all_to_all():
        kwargs["moe_ep_rank"] = None
    return original(*args, **kwargs)


def choose_by_row(original: Callable[..., Any], topk_ids: Any, info: Any) -> Any:
    """Choose the replica of a (token, expert) pair by the token's row."""
    if _all_to_all() or info is None:
        return original(topk_ids, info)
    import torch

    expert_N = topk_ids.flatten()
    replicas_N = info.partial_logical_to_all_physical_map_num_valid[expert_N]
    row_N = torch.arange(expert_N.shape[0], dtype=replicas_N.dtype, device=expert_N.device) // topk_ids.shape[-1]
    slot_N = info.partial_logical_to_all_physical_map[expert_N, row_N % replicas_N]
    return slot_N.to(topk_ids.dtype).view(topk_ids.shape)


def _all_to_all() -> bool:
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    return not get_moe_a2a_backend().is_none()
