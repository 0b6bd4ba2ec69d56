"""What a replay engine is from its start on: its first layout, and what it says of itself."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import numpy as np
import numpy.typing as npt

from profiler.engine.contract import ABILITIES, CONTRACT_VERSION, REPLAY_ENGINE, Ability, PluginHealth
from profiler.replay.options import REPLAYED_VERSION, ReplayOptions
from profiler.replay.traffic import Traffic

WITHOUT_DISPATCH = (
    "the engine was started without a dispatch algorithm and takes expert ids for slots; "
    "start it with --ep-dispatch-algorithm dynamic."
)


def first_map(traffic: Traffic, options: ReplayOptions) -> npt.NDArray[np.int32]:
    """Return the layout at start, int32 [L, P]."""
    if options.layout is not None:
        return options.layout.slot_to_expert_LP.copy()
    slot_P = np.arange(options.gpus * options.slots_per_gpu, dtype=np.int32)
    return np.tile(slot_P % traffic.experts, (traffic.layers, 1))


def plugin_health(options: ReplayOptions) -> PluginHealth:
    """Return what ``GET /moeplan/health`` answers."""
    return PluginHealth(
        contract=CONTRACT_VERSION,
        engine=REPLAY_ENGINE,
        simulated=True,
        moeplan_version=_moeplan_version(),
        engine_version=REPLAYED_VERSION,
        ranks=tuple(range(options.gpus)),
        ranks_expected=options.gpus,
        abilities={
            name: Ability(works=True)
            if name != "push" or options.dispatch is not None
            else Ability(works=False, reason=f"DISPATCH_NOT_SET: {WITHOUT_DISPATCH}")
            for name in ABILITIES
        },
    )


def server_arguments(options: ReplayOptions, traffic: Traffic, *, homes: str, steps: int) -> dict[str, object]:
    """Return those of SGLang's server arguments that bear on experts."""
    return {
        "engine": REPLAY_ENGINE,
        "simulated": True,
        "version": REPLAYED_VERSION,
        "model_path": traffic.model,
        "tp_size": options.gpus,
        "dp_size": options.gpus,
        "ep_size": options.gpus,
        "nnodes": options.nodes,
        "enable_dp_attention": True,
        "ep_dispatch_algorithm": options.dispatch,
        "ep_num_redundant_experts": options.gpus * options.slots_per_gpu - traffic.experts,
        "moe_a2a_backend": options.a2a,
        "expert_distribution_recorder_mode": "stat" if options.recorder else None,
        "expert_distribution_recorder_buffer_size": options.recorder_ring_steps,
        "enable_return_routed_experts": options.routed_experts,
        "replay": {"trace": traffic.name, "homes": homes, "seed": options.seed, "steps": steps},
    }


def _moeplan_version() -> str:
    try:
        return version("moeplan")
    except PackageNotFoundError:
        return "0+unknown"
