"""What a scheduler rank knows of itself, read the same way on every tested SGLang version."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class RankView:
    """A rank's place in the engine.

    Attributes
    ----------
    tp_rank, tp_size, ep_rank, ep_size, moe_tp_size, pp_size, nodes : int
        Place and sizes; ``ep_rank`` is the GPU's number in layouts.
    dp_attention : bool
        Whether every data-parallel rank attends to its own requests.
    dp_size, dp_rank : int
        Data-parallel attention ranks; 1 and 0 without DP attention.
    attn_tp_size, attn_tp_rank : int
        Ranks that share the attention of one data-parallel rank.
    a2a_backend : str
        ``none`` when every rank sees every token.
    dispatch : str or None
        ``--ep-dispatch-algorithm`` as resolved by the engine.
    """

    tp_rank: int
    tp_size: int
    ep_rank: int
    ep_size: int
    moe_tp_size: int
    pp_size: int
    nodes: int
    dp_attention: bool
    dp_size: int
    dp_rank: int
    attn_tp_size: int
    attn_tp_rank: int
    a2a_backend: str
    dispatch: str | None

    @property
    def all_to_all(self) -> bool:
        """Whether ranks see only their own tokens before the experts."""
        return self.a2a_backend != "none"

    @property
    def sources(self) -> int:
        """Ranks that demand is counted by: every GPU, or one where all GPUs share all tokens."""
        return self.ep_size if self.all_to_all or self.dp_attention else 1

    @property
    def source(self) -> int:
        """This rank's row in demand."""
        return self.ep_rank if self.sources > 1 else 0

    @property
    def counts_its_rows(self) -> bool:
        """False on ranks whose tokens another rank of the same attention group counts already."""
        return self.all_to_all or self.attn_tp_rank == 0


def view_rank(server_args: Any) -> RankView:
    """Read this process's place in the engine."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    dp_attention = bool(server_args.enable_dp_attention)
    attn_tp_size = int(parallel.attn_tp_size)
    tp_rank, tp_size = int(parallel.tp_rank), int(parallel.tp_size)
    return RankView(
        tp_rank=tp_rank,
        tp_size=tp_size,
        ep_rank=int(parallel.moe_ep_rank),
        ep_size=int(parallel.moe_ep_size),
        moe_tp_size=int(parallel.moe_tp_size),
        pp_size=int(parallel.pp_size),
        nodes=int(server_args.nnodes),
        dp_attention=dp_attention,
        dp_size=tp_size // attn_tp_size if dp_attention else 1,
        dp_rank=tp_rank // attn_tp_size if dp_attention else 0,
        attn_tp_size=attn_tp_size,
        attn_tp_rank=int(parallel.attn_tp_rank),
        a2a_backend=str(moe_setting(server_args, "moe_a2a_backend")),
        dispatch=moe_setting(server_args, "ep_dispatch_algorithm"),
    )


def moe_setting(server_args: Any, name: str) -> Any:
    """Return an MoE setting as the engine resolved it (newer versions resolve into a context, not into the args)."""
    from sglang.srt import runtime_context

    get_exec = getattr(runtime_context, "get_exec", None)
    if get_exec is not None:
        return getattr(get_exec().moe, name)
    return getattr(server_args, name)


def location_metadata() -> Any:
    """Return SGLang's expert location metadata, None for models without expert location."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    return get_global_expert_location_metadata()


def metadata_of_map(server_args: Any, model_config: Any, map_LP: Any, *, ep_rank: int) -> Any:
    """Build SGLang's metadata for a map (of all layers or of some), with nearest dispatch for a rank.

    ``init_by_mapping`` takes the server's arguments first up to SGLang 0.5.18 and not any more in 0.5.23.
    """
    from sglang.srt.eplb.expert_location import ExpertLocationMetadata

    init = ExpertLocationMetadata.init_by_mapping
    first = (server_args,) if "server_args" in inspect.signature(init).parameters else ()
    metadata = init(*first, model_config, physical_to_logical_map=map_LP, moe_ep_rank=ep_rank)
    slots_LEP = every_slot(map_LP.cpu().numpy(), experts=int(metadata.num_logical_experts))
    running = location_metadata()
    for one in (metadata, running) if running is not None else (metadata,):
        keep_host_list_apart(one)
    metadata.logical_to_all_physical_map_cpu.copy_(_tensor(slots_LEP))
    return metadata


def keep_host_list_apart(metadata: Any) -> None:
    """Give metadata a host's copy of the slot lists of its own.

    On a CPU SGLang's "copy" is the very tensor that dispatch reads: listing every slot in it would end nearest
    dispatch.
    """
    host = metadata.logical_to_all_physical_map_cpu
    if host.data_ptr() == metadata.logical_to_all_physical_map.data_ptr():
        metadata.logical_to_all_physical_map_cpu = host.clone()


def every_slot(map_LP: npt.NDArray[np.integer], *, experts: int) -> npt.NDArray[np.int64]:
    """List the slots of every expert, padded with -1; int64 [L, E, P].

    SGLang's own list is the rank's preferred slots, and weights that are loaded later go to the slots of that list: a
    second replica of an expert on one GPU would keep its old weights. Only that loading reads the host's copy.
    """
    layers, slots = map_LP.shape
    slot_LP = np.argsort(map_LP, axis=1, kind="stable")
    expert_LP = np.take_along_axis(map_LP, slot_LP, axis=1)
    replicas_LE = np.zeros((layers, experts), dtype=np.int64)
    np.add.at(replicas_LE, (np.arange(layers)[:, None], expert_LP), 1)
    first_LE = np.cumsum(replicas_LE, axis=1) - replicas_LE
    number_LP = np.arange(slots) - np.take_along_axis(first_LE, expert_LP, axis=1)
    slots_LEP = np.full((layers, experts, slots), -1, dtype=np.int64)
    slots_LEP[np.arange(layers)[:, None], expert_LP, number_LP] = slot_LP
    return slots_LEP


def _tensor(values: npt.NDArray[np.int64]) -> Any:
    import torch

    return torch.from_numpy(values)


def copied_metadata(metadata: Any) -> Any:
    """Return metadata of the same map in tensors of its own."""
    import torch

    tensors = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
    return replace(metadata, **{name: value.clone() for name, value in tensors.items() if torch.is_tensor(value)})


def set_rows(metadata: Any, layers: tuple[int, ...], rows: Any) -> None:
    """Write metadata of some layers into metadata of all layers."""
    import torch

    for field in fields(metadata):
        value = getattr(metadata, field.name)
        if torch.is_tensor(value):
            value[list(layers)] = getattr(rows, field.name).to(value.dtype)


def wait_for_device() -> None:
    """Wait until no forward pass runs on this rank's device (with overlap scheduling one may still do)."""
    import torch

    torch.get_device_module().synchronize()


def weights_of_layers(model: Any) -> Any:
    """Return the tensors that SGLang's updater moves, by layer.

    Some models fill the attribute only when weights are loaded, which ``--load-format dummy`` skips.
    """
    weights = getattr(model, "routed_experts_weights_of_layer", None)
    if weights is None:
        layers = enumerate(model.model.layers)
        weights = {i: layer.mlp.get_moe_weights() for i, layer in layers if hasattr(layer.mlp, "get_moe_weights")}
        model.routed_experts_weights_of_layer = weights
    return weights


def moe_layers(model: Any) -> tuple[int, ...]:
    """Return the decoder layers that have routed experts."""
    return tuple(sorted(int(layer) for layer in weights_of_layers(model).keys()))  # noqa: SIM118  (a lazy value, no dict)
