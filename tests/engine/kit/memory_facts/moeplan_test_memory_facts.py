"""SGLang plugin that notes, for every rank, the bytes of its weights and the memory that the engine's cache may take.

Both are in no log: it prints free memory in GB with two digits. One JSON file per rank, ``memory-RANK.json``, lies in
the folder named by MOEPLAN_TEST_LOADS_FOLDER.
"""

import json
import os
from pathlib import Path


def _note(**facts):
    from sglang.srt.runtime_context import get_parallel

    file = Path(os.environ["MOEPLAN_TEST_LOADS_FOLDER"]) / f"memory-{get_parallel().moe_ep_rank}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | facts))


def _loaded(result, model_runner, *_args, **_kwargs):
    tensors = model_runner.model.parameters()
    _note(weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    return result


def _cache_bytes(original, *args, **kwargs):
    allowed = original(*args, **kwargs)
    _note(cache_bytes=allowed)
    return allowed


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.load_model", _loaded, HookType.AFTER)
    HookRegistry.register(
        "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._profile_available_bytes",
        _cache_bytes,
        HookType.AROUND,
    )
