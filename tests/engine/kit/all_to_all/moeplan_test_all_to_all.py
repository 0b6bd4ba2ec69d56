"""SGLang plugin that lets ``--moe-a2a-backend deepep --deepep-mode normal`` run on a CPU with the stand-in ``deep_ep``.

SGLang's own dispatcher stays; replaced are what asks for a GPU and the expert kernels. The control message
``test_pairs`` returns what the stand-in counted on every rank.
"""

import torch


def _buffer(_original, *args, **_kwargs):
    from deep_ep import Buffer
    from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPBuffer

    state = DeepEPBuffer._state()
    if state.buffer is None:
        state.buffer = Buffer(args[1] if isinstance(args[0], type) else args[0])
    return state.buffer


def _combine_a(_original, dispatcher, hidden_states, topk_ids, topk_weights):
    from deep_ep import Buffer

    return hidden_states, (Buffer.capture() if dispatcher.async_finish else None)


def _run_experts(_original, layer, dispatch_output):
    """The experts of this rank in plain torch; ids are local slots, -1 where another rank computes."""
    import torch.nn.functional as F
    from moeplan_test_cpu_shim import count_load
    from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPNormalCombineInput

    x, ids, weights = dispatch_output.hidden_states, dispatch_output.topk_ids, dispatch_output.topk_weights
    out = torch.zeros(x.shape, dtype=torch.float32)
    for slot in range(layer.w13_weight.shape[0]):
        rows, columns = (ids == slot).nonzero(as_tuple=True)
        count_load(layer, rows.numel())
        if rows.numel():
            gate, up = F.linear(x[rows], layer.w13_weight[slot]).chunk(2, -1)
            product = F.linear(F.silu(gate) * up, layer.w2_weight[slot]).float()
            out.index_add_(0, rows, product * weights[rows, columns].float()[:, None])
    return DeepEPNormalCombineInput(out.to(x.dtype), ids, weights)


def _capture(original, capturer, layer_id, topk_indices):
    """GPU routers hand over int32 ids; gloo wants both ends of a gather to be of one type."""
    return original(capturer, layer_id, topk_indices.to(torch.int32))


def _pairs(original, scheduler, request):
    if request.method != "test_pairs":
        return original(scheduler, request)
    from deep_ep import PAIRS
    from sglang.srt.managers.io_struct import DumperControlReqOutput

    group = scheduler.tp_cpu_group
    ranks = [None] * torch.distributed.get_world_size(group=group)
    torch.distributed.all_gather_object(ranks, dict(PAIRS), group=group)
    return DumperControlReqOutput(success=True, response=ranks)


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    dispatcher = "sglang.srt.layers.moe.token_dispatcher.deepep."
    for target, hook in {
        f"{dispatcher}DeepEPBuffer.get_deepep_buffer": _buffer,
        f"{dispatcher}_DeepEPDispatcherImplNormal.combine_a": _combine_a,
        "sglang.srt.layers.moe.ep_moe.layer.DeepEPMoE.run_moe_core": _run_experts,
        "sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer.capture": _capture,
        "sglang.srt.managers.scheduler.Scheduler.handle_dumper_control": _pairs,
    }.items():
        HookRegistry.register(target, hook, HookType.AROUND)
