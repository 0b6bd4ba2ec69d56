"""Fingerprints of every per-expert tensor, weights and scales, per slot.

A push moves the tensors that the model names in ``get_moe_weights``. Whether these are all is the question that
silent corruption hangs on (a scale left behind keeps its old expert's value), so fingerprints cover every tensor
of the experts' modules whose first axis is this rank's slots, named by the modules and not by the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PIECE = 1 << 20
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd 64-bit multiplier (2**64 / golden ratio) as a signed integer."""


def expert_modules(model: Any) -> dict[int, Any]:
    """Return the modules that hold routed experts, by decoder layer."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    modules: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, FusedMoE) and isinstance(getattr(module, "layer_id", None), int):
            modules.setdefault(int(module.layer_id), module)
    return modules


def per_expert_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and tensor [local slots, ...] of everything in an experts' module that has a row per local slot.

    Besides parameters and buffers these are plain tensor attributes (prepared scales, for example). Tensors that
    SGLang marks as needing all experts' values hold the same on every rank and are no slot's own. Rows of shared
    experts that some engines fuse behind the routed ones never move and are left out.
    """
    rows = int(module.num_local_experts)
    slots = rows - int(getattr(module, "num_fused_shared_experts", 0) or 0)
    named = dict(module.named_parameters())
    named.update(module.named_buffers())
    named.update({name: value for name, value in vars(module).items() if _is_tensor(value)})
    for name, tensor in sorted(named.items()):
        if tensor.ndim == 0 or tensor.shape[0] != rows or getattr(tensor, "_sglang_require_global_experts", False):
            continue
        if name == "correction_bias" or (tensor.ndim == 1 and tensor.dtype.is_floating_point is False):
            continue  # a router's bias and index tables: not part of an expert
        yield name, tensor.detach()[:slots]


def unmoved_tensors(module: Any, moved: list[Any]) -> tuple[str, ...]:
    """Return the names of per-expert tensors that the updater would leave behind."""
    addresses = {tensor.data_ptr() for tensor in moved}
    return tuple(name for name, tensor in per_expert_tensors(module) if tensor.data_ptr() not in addresses)


def slot_checksums(module: Any) -> dict[str, list[str]]:
    """Return a 16-digit text per local slot for every per-expert tensor; equal texts mean equal bytes."""
    return {name: [f"{value:016x}" for value in _fingerprints(tensor)] for name, tensor in per_expert_tensors(module)}


def bytes_per_expert(module: Any) -> int:
    """Return the bytes of one expert of a layer, weights and scales."""
    return sum(tensor[0].numel() * tensor.element_size() for _name, tensor in per_expert_tensors(module))


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _fingerprints(tensor: Any) -> list[int]:
    """Return a polynomial hash of every row's bits in 64-bit integer arithmetic: exact, so equal on any device."""
    import torch

    words_of_bytes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    word = words_of_bytes[tensor.element_size()]
    powers = _powers(min(_PIECE, max(tensor[0].numel(), 1)), tensor.device)
    step = _signed(pow(_FACTOR, powers.numel(), 1 << 64))
    values = []
    for row in tensor:
        words = row.contiguous().flatten().view(word)
        total = torch.zeros((), dtype=torch.int64, device=tensor.device)
        for piece in words.split(_PIECE):
            mixed = (piece.to(torch.int64) + 1) * powers[: piece.numel()]
            total = total * step + mixed.sum()
        values.append(total)
    return [value % (1 << 64) for value in torch.stack(values).tolist()] if values else []


def _powers(count: int, device: Any) -> Any:
    """Return the factor's powers 1..count modulo 2**64."""
    import torch

    factors = torch.full((count,), _FACTOR, dtype=torch.int64, device=device)
    return factors.cumprod(0)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
