"""How many bytes a weight matrix takes, scales included, from a model's ``quantization_config``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from placement.errors import BadModelConfig

Arithmetic = Literal["bf16", "fp8"]

PLAIN_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8_e4m3fn": 1.0}

METHODS = ("fp8", "mxfp4", "awq", "gptq", "compressed-tensors", "modelopt", "w8a8_int8")


@dataclass(frozen=True)
class WeightFormat:
    """One number format of weight matrices.

    Attributes
    ----------
    name : str
    bytes_per_weight : float
    scale_bytes : float
        Bytes of one scale (and zero point).
    block : tuple of int or None
        Rows (outputs) x columns (inputs) that share a scale; 0 for all of them. None without scales.
    arithmetic : {"bf16", "fp8"}
        In what the products are computed; weights of 4 bits are unpacked to bf16.
    """

    name: str
    bytes_per_weight: float
    scale_bytes: float = 0.0
    block: tuple[int, int] | None = None
    arithmetic: Arithmetic = "bf16"

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of a matrix [outputs, inputs]."""
        weights = outputs * inputs * self.bytes_per_weight
        if self.block is None:
            return math.ceil(weights)
        rows, columns = (size or whole for size, whole in zip(self.block, (outputs, inputs), strict=True))
        return math.ceil(weights + math.ceil(outputs / rows) * math.ceil(inputs / columns) * self.scale_bytes)


@dataclass(frozen=True)
class Quantisation:
    """The formats of a model's parts.

    Attributes
    ----------
    plain : WeightFormat
        Of embeddings, norms, routers and everything that is not quantised.
    experts, shared, dense, attention : WeightFormat
        Of routed experts, shared experts, dense feed-forward layers and attention projections.
    """

    plain: WeightFormat
    experts: WeightFormat
    shared: WeightFormat
    dense: WeightFormat
    attention: WeightFormat

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Quantisation:
        """Read ``torch_dtype`` (or ``dtype``) and ``quantization_config``.

        Raises
        ------
        BadModelConfig
            A method or number format that is not known, naming those that are.
        """
        plain = _plain(config)
        asked = config.get("quantization_config")
        if asked is None:
            return cls(plain, plain, plain, plain, plain)
        if not isinstance(asked, Mapping):
            raise BadModelConfig(f"quantization_config is {asked!r}; a JSON object is needed.")
        packed = _format(asked)
        kept = _left_out(asked)
        only_experts = packed.name == "mxfp4"

        def of(*words: str) -> WeightFormat:
            return plain if only_experts or any(word in name for name in kept for word in words) else packed

        return cls(
            plain=plain,
            experts=packed,
            shared=of("shared_expert"),
            dense=of("mlp.gate_proj", "mlp.down_proj"),
            attention=of("attn", "attention"),
        )


def _plain(config: Mapping[str, Any]) -> WeightFormat:
    name = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    if name not in PLAIN_BYTES:
        raise BadModelConfig(f"torch_dtype is {name!r}; known ones are {', '.join(PLAIN_BYTES)}.")
    return WeightFormat(name, PLAIN_BYTES[name])


def _format(asked: Mapping[str, Any]) -> WeightFormat:
    method = str(asked.get("quant_method", "")).lower()
    if method == "fp8":
        return _fp8(asked.get("weight_block_size"))
    if method == "mxfp4":
        return WeightFormat("mxfp4", 0.5, 1.0, (1, 32))
    if method in ("awq", "gptq", "auto-round"):
        return _grouped(
            asked.get("bits", asked.get("w_bit", 4)), asked.get("group_size", asked.get("q_group_size", 128))
        )
    if method == "compressed-tensors":
        return _compressed(asked)
    if method == "modelopt" or "quant_algo" in asked:
        return _modelopt(str(asked.get("quant_algo", "")).upper())
    if method == "w8a8_int8":
        return WeightFormat("int8", 1.0, 4.0, (1, 0))
    raise BadModelConfig(f"quantization_config.quant_method is {method!r}; known ones are {', '.join(METHODS)}.")


def _fp8(block: object) -> WeightFormat:
    if block is None:
        return WeightFormat("fp8", 1.0, 4.0, (0, 0), "fp8")
    if not isinstance(block, (list, tuple)) or len(block) != 2 or not all(_is_size(size) for size in block):
        raise BadModelConfig(f"quantization_config.weight_block_size is {block!r}; two whole numbers are needed.")
    return WeightFormat("fp8", 1.0, 4.0, (int(block[0]), int(block[1])), "fp8")


def _grouped(bits: object, group: object) -> WeightFormat:
    """Whole numbers in groups along the inputs; a group has a 16-bit scale and a zero point of as many bits."""
    if not _is_size(bits) or not isinstance(bits, int) or bits not in (2, 3, 4, 8):
        raise BadModelConfig(f"quantization_config.bits is {bits!r}; it is 2, 3, 4 or 8.")
    if isinstance(group, bool) or not isinstance(group, int) or (group < 1 and group != -1):
        raise BadModelConfig(
            f"quantization_config.group_size is {group!r}; it is a whole number, or -1 for all inputs."
        )
    return WeightFormat(f"int{bits}", bits / 8, 2 + bits / 8, (1, max(group, 0)))


def _compressed(asked: Mapping[str, Any]) -> WeightFormat:
    groups = asked.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        raise BadModelConfig("quantization_config.config_groups holds no group with weights.")
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    if (bits, kind) == (8, "float"):
        if strategy == "block":
            return _fp8(weights.get("block_structure"))
        return WeightFormat("fp8", 1.0, 4.0, (1 if strategy == "channel" else 0, 0), "fp8")
    if (bits, kind) == (4, "float"):
        return WeightFormat("nvfp4", 0.5, 1.0, (1, 16))
    if kind == "int":
        group = weights.get("group_size")
        return _grouped(bits, -1 if group is None else group)
    raise BadModelConfig(f"quantization_config has weights of {bits!r} bits, type {kind!r}; 8 or 4 bits are known.")


def _modelopt(algorithm: str) -> WeightFormat:
    if algorithm == "FP8":
        return WeightFormat("fp8", 1.0, 4.0, (0, 0), "fp8")
    if algorithm == "NVFP4":
        return WeightFormat("nvfp4", 0.5, 1.0, (1, 16))
    raise BadModelConfig(f"quantization_config.quant_algo is {algorithm!r}; FP8 and NVFP4 are known.")


def _left_out(asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the modules that stay as they are."""
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        names = asked.get(key)
        if isinstance(names, (list, tuple)):
            return tuple(str(name) for name in names)
    return ()


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
