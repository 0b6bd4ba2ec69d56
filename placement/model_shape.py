"""The shape of a Mixture-of-Experts model, read from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placement.errors import BadModelConfig
from placement.weight_formats import Arithmetic, Quantisation

EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
TOP_K_KEYS = ("num_experts_per_tok", "moe_topk", "num_experts_per_token", "experts_per_token")


EXPERT_WIDTH_KEYS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")


@dataclass(frozen=True)
class ExpertShape:
    """One routed expert: gate and up projection [width, hidden] and down projection [hidden, width].

    Attributes
    ----------
    hidden, width : int
        Values of a token, and between the projections.
    weight_bytes : int
        Of one expert in one layer, scales included.
    arithmetic : {"bf16", "fp8"}
    """

    hidden: int
    width: int
    weight_bytes: int
    arithmetic: Arithmetic = "bf16"

    @property
    def flops_per_row(self) -> int:
        """Floating-point operations for one routed token: a multiplication and an addition per weight."""
        return 6 * self.hidden * self.width

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ExpertShape:
        """Read a ``config.json`` that was parsed to a mapping; raises BadModelConfig naming what is missing."""
        config = text_config(config)
        hidden, width = _positive(config, ("hidden_size",)), _positive(config, EXPERT_WIDTH_KEYS)
        packed = Quantisation.from_config(config).experts
        weight_bytes = packed.matrix_bytes(2 * width, hidden) + packed.matrix_bytes(hidden, width)
        if has_expert_biases(config):
            weight_bytes += int((2 * width + hidden) * Quantisation.from_config(config).plain.bytes_per_weight)
        return cls(hidden, width, weight_bytes, packed.arithmetic)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a multimodal configuration."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) and "num_hidden_layers" in inner else config


def has_expert_biases(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "gpt_oss"


@dataclass(frozen=True)
class ModelShape:
    """Layers and experts of a model.

    Attributes
    ----------
    layers : int
        Decoder layers, dense ones included (draft layers are not).
    experts : int
        Routed experts per MoE layer.
    top_k : int
        Experts per token.
    moe_layers : tuple of int
        Decoder layers that have experts.
    draft_layers : int
        Extra next-token-prediction layers at the end of some dumps.
    expert_groups : int or None
        Groups of the router's group-limited selection.
    name : str
    config : mapping
        The language model's configuration, empty where the shape did not come from one.
    """

    layers: int
    experts: int
    top_k: int
    moe_layers: tuple[int, ...]
    draft_layers: int = 0
    expert_groups: int | None = None
    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def expert(self) -> ExpertShape:
        """How large an expert is; raises BadModelConfig where the configuration does not say."""
        return ExpertShape.from_config(self.config)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, name: str = "") -> ModelShape:
        """Read a ``config.json`` that was parsed to a mapping.

        Raises
        ------
        BadModelConfig
            Naming the key that is missing or out of range.
        """
        config = text_config(config)
        layers = _positive(config, ("num_hidden_layers",))
        experts = _positive(config, EXPERT_KEYS)
        top_k = _positive(config, TOP_K_KEYS)
        if top_k > experts:
            raise BadModelConfig(f"top-k is {top_k} but there are only {experts} experts.")
        moe_layers = tuple(layer for layer in range(layers) if _has_experts(config, layer))
        if not moe_layers:
            raise BadModelConfig(f"none of the {layers} layers has experts.")
        groups = config.get("n_group")
        return cls(
            layers=layers,
            experts=experts,
            top_k=top_k,
            moe_layers=moe_layers,
            draft_layers=_whole(config, "num_nextn_predict_layers"),
            expert_groups=groups if isinstance(groups, int) and groups > 1 else None,
            name=name or str(config.get("_name_or_path") or config.get("model_type") or ""),
            config=config,
        )


def _positive(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadModelConfig(f"{key} is {value!r}; a whole number of at least 1 is needed.")
        return value
    raise BadModelConfig(f"the model configuration has none of {', '.join(keys)}: is it a Mixture-of-Experts model?")


def _has_experts(config: Mapping[str, Any], layer: int) -> bool:
    """Follow the rules of DeepSeek (first_k_dense_replace, moe_layer_freq) and Qwen (decoder_sparse_step, mlp_only)."""
    without_experts = config.get("mlp_only_layers") or []
    if not isinstance(without_experts, list):
        raise BadModelConfig(f"mlp_only_layers is {without_experts!r}; a list of layers is needed.")
    frequency = config.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        return layer < len(frequency) and bool(frequency[layer])
    return (
        layer >= _whole(config, "first_k_dense_replace")
        and layer % (_whole(config, "moe_layer_freq") or 1) == 0
        and layer not in without_experts
        and (layer + 1) % (_whole(config, "decoder_sparse_step") or 1) == 0
    )


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadModelConfig(f"{key} is {value!r}; a whole number of at least 0 is needed.")
    return value
