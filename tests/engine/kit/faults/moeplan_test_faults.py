"""SGLang plugin that breaks the weight mover on demand, so that the verification can be seen to fail.

The file named by MOEPLAN_TEST_FAULT_FILE says how: ``map_only`` (routing changes, weights stay), ``leave_last_tensor``
(one tensor of every expert stays), ``leave_scales`` (of int8 experts only the weights move), ``fail_at:LAYER``. Without
the file nothing happens.
"""

import os
from pathlib import Path


def _fault():
    path = os.environ.get("MOEPLAN_TEST_FAULT_FILE", "")
    return Path(path).read_text().strip() if path and Path(path).is_file() else ""


def _update(original, updater, weights, new_metadata, update_layer_ids, *args, **kwargs):
    fault = _fault()
    if fault == "map_only":
        from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

        get_global_expert_location_metadata().update(new_metadata, update_layer_ids=update_layer_ids)
        return {}
    if fault == "leave_last_tensor":
        weights = {layer: list(weights[layer])[:-1] for layer in weights.keys()}  # noqa: SIM118  (a lazy value, no dict)
    if fault == "leave_scales":
        import torch

        moving = {layer: weights[layer] for layer in weights.keys()}  # noqa: SIM118
        weights = {layer: [one for one in tensors if one.dtype == torch.int8] for layer, tensors in moving.items()}
    if fault == f"fail_at:{update_layer_ids[0]}":
        raise RuntimeError("a fault was asked for")
    return original(updater, weights, new_metadata, update_layer_ids, *args, **kwargs)


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.eplb.expert_location_updater.ExpertLocationUpdater.update", _update, HookType.AROUND
    )
