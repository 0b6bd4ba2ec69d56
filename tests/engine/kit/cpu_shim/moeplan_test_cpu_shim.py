"""SGLang plugin that lets the real engine serve a MoE model with expert parallelism on a CPU (0.5.16 and 0.5.23).

It replaces only what needs a GPU: the expert kernels, two collectives, pinned memory. Routing, expert location,
recorder, scheduler and HTTP server are SGLang's own.
"""

import os
import threading
from functools import cache
from pathlib import Path

_stripped = threading.local()

LOAD_LAYERS = 64
"""Layers that loads are counted for."""


@cache
def _loads():
    """The pairs of token and expert that this rank computed, by layer: int64, in a file that the tests read."""
    import numpy as np
    from sglang.srt.runtime_context import get_parallel

    folder = os.environ.get("MOEPLAN_TEST_LOADS_FOLDER")
    if not folder:
        return np.zeros(LOAD_LAYERS, dtype=np.int64)
    return np.memmap(
        Path(folder) / f"loads-{get_parallel().moe_ep_rank}", dtype=np.int64, mode="w+", shape=(LOAD_LAYERS,)
    )


def count_load(layer, pairs):
    """Count pairs that the experts of this rank computed in a layer."""
    _loads()[layer.layer_id] += pairs


def _without_dispatch_info(original, *args, **kwargs):
    """0.5.16's native router refuses dispatch info and padding; keep them for after it (see _map_to_slots)."""
    _stripped.info = kwargs.pop("expert_location_dispatch_info", None)
    _stripped.real_rows = kwargs.pop("num_token_non_padded", None)
    try:
        return original(*args, **kwargs)
    finally:
        _stripped.info = _stripped.real_rows = None


def _map_to_slots(original, *args, **kwargs):
    """0.5.16 turns expert ids into slots on GPUs only; do it here where a GPU would."""
    topk_ids, topk_weights, recorder_ids = original(*args, **kwargs)
    if getattr(_stripped, "info", None) is not None:
        from sglang.srt.eplb.expert_location_dispatch import topk_ids_logical_to_physical

        topk_ids = recorder_ids = topk_ids_logical_to_physical(topk_ids, _stripped.info)
    if getattr(_stripped, "real_rows", None) is not None:
        topk_ids[int(_stripped.real_rows) :] = -1
    return topk_ids, topk_weights, recorder_ids


def _experts(original, layer, x, topk_output, config):
    """The experts of this rank in plain torch; ids below 0 belong to other ranks."""
    import torch
    import torch.nn.functional as F

    weights, ids = topk_output[0], topk_output[1]
    out = torch.zeros(x.shape, dtype=torch.float32)
    for expert in range(layer.w13_weight.shape[0]):
        rows, columns = (ids == expert).nonzero(as_tuple=True)
        count_load(layer, rows.numel())
        if rows.numel():
            gate, up = F.linear(x[rows], layer.w13_weight[expert]).chunk(2, -1)
            product = F.linear(F.silu(gate) * up, layer.w2_weight[expert]).float()
            out.index_add_(0, rows, product * weights[rows, columns].float()[:, None])
    return out.to(x.dtype)


def _pad_inputs(original, batch, model_runner, *args, **kwargs):
    """DP attention pads batches, and the torch attention backend has no fill value on a CPU."""
    backend = type(model_runner.attn_backend)
    for name in ("get_cpu_graph_seq_len_fill_value", "get_cuda_graph_seq_len_fill_value"):
        if name not in vars(backend):
            setattr(backend, name, lambda self: 1)
    return original(batch, model_runner, *args, **kwargs)


def _reduce_scatterv(original, group, input_, output=None, sizes=None):
    """SGLang's own needs NCCL; over gloo take this rank's rows of an all-reduce."""
    sizes = sizes or [input_.shape[0] // group.world_size] * group.world_size
    rank = group.rank_in_group
    part = group.all_reduce(input_.clone()).narrow(0, sum(sizes[:rank]), sizes[rank])
    return part.contiguous() if output is None else output.copy_(part)


def _copy_rows(original, to, from_, dim, offset, rows, offset_is_source):
    """0.5.16 copies the rows of a gathered batch with a Triton kernel."""
    first, count = int(offset), int(rows)
    if offset_is_source:
        to[:count].copy_(from_[first : first + count])
    else:
        to[first : first + count].copy_(from_[:count])


def _all_gather(original, group, output, input_):
    """0.5.16 gathers with an operator that exists for GPUs only."""
    import torch

    torch.distributed.all_gather_into_tensor(output, input_, group=group.device_group)


def _reduce_scatter(original, group, output, input_):
    """As _all_gather; gloo scatters nothing, so take this rank's part of an all-reduce."""
    rows = output.shape[0]
    output.copy_(group.all_reduce(input_.clone()).narrow(0, group.rank_in_group * rows, rows))


def _own_copy(original, *args, **kwargs):
    """0.5.16 hands routed ids to the overlapped result as a view, which moving to the CPU copies only from a GPU."""
    output = original(*args, **kwargs)
    if output is not None:
        output.map_device_tensors(lambda tensor: tensor.clone())
    return output


def _without_pinning(make):
    return lambda *args, **kwargs: make(*args, **{k: v for k, v in kwargs.items() if k != "pin_memory"})


def _unpinned_memory():
    import torch

    zeros = torch.zeros
    torch.zeros, torch.tensor = _without_pinning(torch.zeros), _without_pinning(torch.tensor)
    for name, function in {"is_current_stream_capturing": lambda: False, "empty_cache": lambda: None}.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)
    try:
        from sglang.srt.mem_cache.pool_host import common
    except ImportError:
        return
    if hasattr(common, "ALLOC_MEMORY_FUNCS"):
        common.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, dtype, **kwargs: zeros(dims, dtype=dtype)


def register():
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _unpinned_memory()
    hooks = {
        "sglang.srt.layers.moe.fused_moe_native.moe_forward_native": _experts,
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch._pad_inputs_to_size": _pad_inputs,
        "sglang.srt.distributed.parallel_state.GroupCoordinator.reduce_scatterv": _reduce_scatterv,
    }
    if sglang.__version__.startswith("0.5.16"):
        hooks["sglang.srt.layers.dp_attention.memcpy_triton"] = _copy_rows
        hooks["sglang.srt.distributed.parallel_state.GroupCoordinator.all_gather_into_tensor"] = _all_gather
        hooks["sglang.srt.distributed.parallel_state.GroupCoordinator.reduce_scatter_tensor"] = _reduce_scatter
        hooks["sglang.srt.state_capturer.base.BaseTopkCapturer.on_forward_end"] = _own_copy
        hooks["sglang.srt.layers.moe.topk.select_experts"] = _without_dispatch_info
        hooks["sglang.srt.layers.moe.topk._post_process_topk_ids"] = _map_to_slots
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
