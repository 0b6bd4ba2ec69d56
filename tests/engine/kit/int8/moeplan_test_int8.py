"""SGLang plugin that lets a ``w8a8_int8`` checkpoint run on any CPU: its kernels exist for GPUs and for CPUs with AMX.

Which tensors the experts have, how they are loaded and which of them a push moves is SGLang's own; replaced is what
computes with them. Activations stay float32, so that another order of sums does not change greedy outputs.
"""


def _with_float32(original, *args, **kwargs):
    import torch

    return [*original(*args, **kwargs), torch.float32]


def _keep_rows(_original, _method, _layer):
    """Leave weights as they were loaded, a row per slot; a CPU with AMX would pack them for its kernel."""


def _without_runner(_original, method, _layer, runner_config):
    method.moe_runner_config = runner_config


def _experts(_original, _method, layer, dispatch_output):
    """The experts of this rank in plain torch, weights times scales; ids below 0 belong to other ranks."""
    import torch
    import torch.nn.functional as F
    from moeplan_test_cpu_shim import count_load
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    x, topk = dispatch_output.hidden_states, dispatch_output.topk_output
    weights, ids = topk[0], topk[1]
    out = torch.zeros(x.shape, dtype=torch.float32)
    for slot in range(layer.w13_weight.shape[0]):
        rows, columns = (ids == slot).nonzero(as_tuple=True)
        count_load(layer, rows.numel())
        if rows.numel():
            w13 = layer.w13_weight[slot].float() * layer.w13_weight_scale[slot]
            w2 = layer.w2_weight[slot].float() * layer.w2_weight_scale[slot]
            gate, up = F.linear(x[rows].float(), w13).chunk(2, -1)
            product = F.linear(F.silu(gate) * up, w2)
            out.index_add_(0, rows, product * weights[rows, columns].float()[:, None])
    return StandardCombineInput(hidden_states=out.to(x.dtype))


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    module = "sglang.srt.layers.quantization.w8a8_int8."
    for target, hook in {
        f"{module}W8A8Int8Config.get_supported_act_dtypes": _with_float32,
        f"{module}W8A8Int8MoEMethod.process_weights_after_loading": _keep_rows,
        f"{module}W8A8Int8MoEMethod.create_moe_runner": _without_runner,
        f"{module}W8A8Int8MoEMethod.apply": _experts,
    }.items():
        HookRegistry.register(target, hook, HookType.AROUND)
