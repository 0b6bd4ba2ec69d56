"""SGLang plugin that times the parts of every step and counts what every GPU really computes.

Both are taken at SGLang's own dispatcher, with or without an all-to-all backend: between the router and the experts,
where ids are slots. Nothing waits for the device until the figures are read. Steps replayed from CUDA graphs are timed
as a whole; their layers are not seen.

``POST /probe`` with ``{"times": bool, "counts": phase or ""}`` starts anew; with ``{}`` it returns and forgets, one
entry per rank::

    {"rank": 0,
     "steps": [{"phase", "tokens", "step_ms", "dispatch_ms": [by layer], "experts_ms": [...], "combine_ms": [...]}],
     "layers": [{"slots": [pairs by slot], "tokens", "own_pairs", "copies"}]}

``counts`` counts the steps of one phase, with those in which a rank takes part without tokens of its own; ``any``
counts all.
``copies`` are rows that an all-to-all sends to other GPUs: one per token and GPU.
"""

import logging
import sys
import time

logger = logging.getLogger(__name__)

STATE = {"times": False, "counts": "", "steps": [], "layers": {}, "step": None}


class _Mark:
    """A moment on the device's stream, or on the clock where there is no such device."""

    def __init__(self):
        import torch

        self.event = torch.cuda.Event(enable_timing=True) if torch.cuda.is_available() else None
        if self.event is not None:
            self.event.record()
        self.clock_s = time.perf_counter()

    def until_ms(self, later):
        if self.event is not None:
            return round(self.event.elapsed_time(later.event), 4)
        return round(1e3 * (later.clock_s - self.clock_s), 4)


def _around_forward(original, runner, batch, *args, **kwargs):
    if not (STATE["times"] or STATE["counts"]) or runner.is_draft_worker:
        return original(runner, batch, *args, **kwargs)
    mode = batch.forward_mode
    phase = "idle" if mode.is_idle() else "prefill" if mode.is_extend() else "decode"
    tokens = 0 if batch.input_ids is None else int(batch.input_ids.shape[0])
    STATE["step"] = step = {"phase": phase, "tokens": tokens, "start": _Mark(), "layers": []}
    try:
        return original(runner, batch, *args, **kwargs)
    finally:
        step["end"] = _Mark()
        STATE["step"] = None
        if STATE["times"]:
            STATE["steps"].append(step)


def _around_dispatch(original, dispatcher, *args, **kwargs):
    step = STATE["step"]
    if step is None:
        return original(dispatcher, *args, **kwargs)
    # A rank without tokens of its own is idle and still computes its slots of the others' tokens.
    if STATE["counts"] == "any" or (STATE["counts"] and step["phase"] in (STATE["counts"], "idle")):
        topk = kwargs.get("topk_output", args[1] if len(args) > 1 else None)
        _count(len(step["layers"]), topk.topk_ids)
    marks = [_Mark()]
    step["layers"].append(marks)
    result = original(dispatcher, *args, **kwargs)
    marks.append(_Mark())
    return result


def _around_combine(original, dispatcher, *args, **kwargs):
    step = STATE["step"]
    if step is None or not step["layers"]:
        return original(dispatcher, *args, **kwargs)
    marks = step["layers"][-1]
    marks.append(_Mark())
    result = original(dispatcher, *args, **kwargs)
    marks.append(_Mark())
    return result


def _sizes():
    """Return slots per layer, slots per GPU and this process's GPU."""
    from sglang.srt.runtime_context import get_parallel

    from profiler.plugin.rank_view import location_metadata

    metadata = location_metadata()
    return int(metadata.num_physical_experts), int(metadata.num_local_physical_experts), get_parallel().moe_ep_rank


def _count(layer, slot_TK):
    """Add up, on the device, the pairs of token and slot of one layer of one step; ids below 0 are padding."""
    import torch

    slots, per_gpu, gpu = _sizes()
    valid_TK = slot_TK >= 0
    slot_TK = torch.where(valid_TK, slot_TK, slots).to(torch.int64)
    gpu_TK = slot_TK // per_gpu
    goes_TG = torch.zeros(slot_TK.shape[0], slots // per_gpu + 1, dtype=torch.bool, device=slot_TK.device)
    goes_TG.scatter_(1, gpu_TK, True)
    remote = goes_TG[:, :-1].sum() - goes_TG[:, gpu].sum()
    sums = torch.stack([valid_TK.any(1).sum(), (gpu_TK == gpu).sum(), remote])
    slot_pairs = torch.bincount(slot_TK.flatten(), minlength=slots + 1)[:slots]
    held = STATE["layers"].get(layer)
    STATE["layers"][layer] = (slot_pairs, sums) if held is None else (held[0] + slot_pairs, held[1] + sums)


def _order(body):
    """Carry out one order on this rank."""
    import torch

    if body:
        STATE.update(times=bool(body.get("times")), counts=body.get("counts", ""), steps=[], layers={}, step=None)
        return {}
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    answer = {"rank": _sizes()[2], "steps": [_step_json(step) for step in STATE["steps"]], "layers": []}
    for layer in sorted(STATE["layers"]):
        slot_pairs, sums = STATE["layers"][layer]
        tokens, own_pairs, copies = sums.tolist()
        answer["layers"].append(
            {"slots": slot_pairs.tolist(), "tokens": tokens, "own_pairs": own_pairs, "copies": copies}
        )
    STATE.update(steps=[], layers={})
    return answer


def _step_json(step):
    whole = [marks for marks in step["layers"] if len(marks) == 4]
    parts = ("dispatch_ms", "experts_ms", "combine_ms")
    times = {part: [marks[i].until_ms(marks[i + 1]) for marks in whole] for i, part in enumerate(parts)}
    return {"phase": step["phase"], "tokens": step["tokens"], "step_ms": step["start"].until_ms(step["end"]), **times}


def _around_control(original, scheduler, request):
    if request.method != "gpu_probe":
        return original(scheduler, request)
    import torch
    from sglang.srt.managers.io_struct import DumperControlReqOutput

    try:
        answer, error = _order(request.body), ""
    except Exception as failure:
        logger.exception("the probe failed")
        answer, error = None, f"{type(failure).__name__}: {failure}"
    group = scheduler.tp_cpu_group
    answers = [None] * torch.distributed.get_world_size(group=group)
    torch.distributed.all_gather_object(answers, (answer, error), group=group)
    errors = "; ".join(error for _, error in answers if error)
    return DumperControlReqOutput(success=not errors, response=[answer for answer, _ in answers], error=errors)


def _after_tokenizer_manager(_result, manager, *_args, **_kwargs):
    http_server = sys.modules.get("sglang.srt.entrypoints.http_server")
    if http_server is None:
        return
    from fastapi import Request
    from fastapi.responses import JSONResponse

    async def probe(request: Request):
        from sglang.srt.managers.io_struct import DumperControlReqInput

        order = DumperControlReqInput(method="gpu_probe", body=await request.json())
        answers = await manager.dumper_control(order)
        failed = "; ".join(answer.error for answer in answers if answer.error)
        return JSONResponse({"ranks": answers[0].response, "error": failed}, status_code=500 if failed else 200)

    probe.__annotations__["request"] = Request
    http_server.app.add_api_route("/probe", probe, methods=["POST"])


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    dispatchers = "sglang.srt.layers.moe.token_dispatcher."
    around = {
        "sglang.srt.model_executor.model_runner.ModelRunner.forward": _around_forward,
        f"{dispatchers}standard.StandardDispatcher.dispatch": _around_dispatch,
        f"{dispatchers}standard.StandardDispatcher.combine": _around_combine,
        f"{dispatchers}deepep.DeepEPDispatcher.dispatch": _around_dispatch,
        f"{dispatchers}deepep.DeepEPDispatcher.combine": _around_combine,
        "sglang.srt.managers.scheduler.Scheduler.handle_dumper_control": _around_control,
    }
    for target, hook in around.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.__init__", _after_tokenizer_manager, HookType.AFTER
    )
