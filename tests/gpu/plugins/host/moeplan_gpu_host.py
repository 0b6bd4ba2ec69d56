"""SGLang plugin for runs on GPUs without DeepEP, DeepGEMM and NVLink multicast (SGLang 0.5.16).

``--moe-a2a-backend deepep --deepep-mode normal`` runs bf16 experts with DeepGEMM only; here they run with SGLang's
Triton kernels, on the rows that the dispatcher has received. NVLink multicast stays off: hosts whose GPUs several
machines share may not survive it.
"""

import triton
import triton.language as tl

COLUMNS = 1024


@triton.jit
def _sum_pairs(pair_rows, row_of_pair, out, width, top_k: tl.constexpr, columns: tl.constexpr):
    """Add up the pairs of one received token: out[token] = sum over k of pair_rows[row_of_pair[token, k]]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((columns,), tl.float32)
    for k in range(top_k):
        row = tl.load(row_of_pair + token * top_k + k)
        if row >= 0:
            total += tl.load(pair_rows + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=column < width)


def _run_received(dispatch_output, quant_info, runner_config):
    """Run this GPU's experts; ids are local slots, below 0 where another GPU computes. Weights are applied here."""
    import torch
    from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_experts
    from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPNormalCombineInput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    rows, slot_TK, weight_TK = (
        dispatch_output.hidden_states,
        dispatch_output.topk_ids,
        dispatch_output.topk_weights,
    )
    out = torch.empty_like(rows)
    here_TK = slot_TK >= 0
    token_N, k_N = here_TK.nonzero(as_tuple=True)
    if not token_N.numel():
        return DeepEPNormalCombineInput(out.zero_(), slot_TK, weight_TK)
    # One row per pair with top-1 each: SGLang's kernel has no way to leave out a token's other experts.
    pairs = StandardTopKOutput(
        weight_TK[token_N, k_N][:, None].contiguous(), slot_TK[token_N, k_N][:, None].to(torch.int32).contiguous(), None
    )
    pair_rows = fused_experts(
        hidden_states=rows[token_N],
        w1=quant_info.w13_weight,
        w2=quant_info.w2_weight,
        topk_output=pairs,
        moe_runner_config=runner_config,
        b1=quant_info.b13,
        b2=quant_info.b2,
    )
    here = here_TK.flatten()
    row_of_pair = torch.where(here, here.to(torch.int64).cumsum(0) - 1, -1)
    width = rows.shape[1]
    grid = (rows.shape[0], triton.cdiv(width, COLUMNS))
    _sum_pairs[grid](pair_rows, row_of_pair, out, width, slot_TK.shape[1], COLUMNS)
    return DeepEPNormalCombineInput(out, slot_TK, weight_TK)


def _combine_a(dispatcher, hidden_states, topk_ids, topk_weights):
    from sglang.srt.layers.moe.token_dispatcher.deepep import Buffer

    return hidden_states, (Buffer.capture() if dispatcher.async_finish else None)


def _dispatch_apply_combine(_result, layer, *_args, **_kwargs):
    """Take the path dispatch -> experts of the quantisation method -> combine; and let the stand-in count nothing."""
    from deep_ep import Buffer

    Buffer.counting = False
    layer.deprecate_flag = True


def _know_received(*_args, **_kwargs):
    """Before a runner is made: bf16 experts behind the dispatcher run with ``_run_received``."""
    from sglang.srt.layers.moe.moe_runner.base import FusedOpPool

    if FusedOpPool.get_fused_func("deepep", "triton") is None:
        FusedOpPool.register_fused_func("deepep", "triton", _run_received)


def _no_multicast(_gatherer, _shape):
    """Leave the multicast buffer unmade."""


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    dispatcher = "sglang.srt.layers.moe.token_dispatcher.deepep._DeepEPDispatcherImplNormal.combine_a"
    multicast = "sglang.srt.distributed.device_communicators.triton_symm_mem_ag.MultimemAllGatherer._build"
    runner = "sglang.srt.layers.moe.moe_runner.runner.MoeRunner.__init__"
    HookRegistry.register(
        "sglang.srt.layers.moe.ep_moe.layer.DeepEPMoE.__init__", _dispatch_apply_combine, HookType.AFTER
    )
    HookRegistry.register(dispatcher, _combine_a, HookType.REPLACE)
    HookRegistry.register(multicast, _no_multicast, HookType.REPLACE)
    HookRegistry.register(runner, _know_received, HookType.BEFORE)
