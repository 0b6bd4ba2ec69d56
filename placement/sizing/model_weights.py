"""All weights of a model, from its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placement.model_shape import ExpertShape, ModelShape, has_expert_biases, text_config
from placement.sizing.attention import KeyValueCache, attention_groups, key_value_cache, whole
from placement.sizing.weight_group import Split, WeightGroup, matrix, vector
from placement.weight_formats import Quantisation


@dataclass(frozen=True)
class ModelWeights:
    """What must be in memory.

    Attributes
    ----------
    shape : ModelShape
    expert : ExpertShape
    groups : tuple of WeightGroup
        Everything but routed experts, draft layers excluded.
    expert_parameters : int
        Of one expert in one layer.
    cache : KeyValueCache
    draft_groups : tuple of WeightGroup
        One draft (MTP) layer without its routed experts; embeddings and output head are the model's own.
    """

    shape: ModelShape
    expert: ExpertShape
    groups: tuple[WeightGroup, ...]
    expert_parameters: int
    cache: KeyValueCache
    draft_groups: tuple[WeightGroup, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, name: str = "") -> ModelWeights:
        """Read a ``config.json`` that was parsed to a mapping.

        Raises
        ------
        BadModelConfig
            Naming the key that is missing or out of range.
        """
        shape = ModelShape.from_config(config, name=name)
        config = text_config(config)
        formats = Quantisation.from_config(config)
        expert = ExpertShape.from_config(config)
        hidden, layers, moe_layers = expert.hidden, shape.layers, len(shape.moe_layers)
        groups = [
            *_vocabulary(config, formats, hidden=hidden),
            *attention_groups(config, formats, layers=layers),
            vector("norms", 2 * hidden, formats.plain, count=layers),
            vector("norms", hidden, formats.plain),
            *_beside_experts(config, formats, shape, layers=moe_layers),
        ]
        if layers > moe_layers:
            width = whole(config, "intermediate_size")
            groups += _feed_forward("dense layers", hidden, width, formats, Split.TENSOR, count=layers - moe_layers)
        draft = [
            *attention_groups(config, formats, layers=1),
            *_beside_experts(config, formats, shape, layers=1),
            matrix("draft projection", hidden, 2 * hidden, formats.plain, Split.WHOLE),
            vector("norms", 5 * hidden, formats.plain),
        ]
        biases = 2 * expert.width + hidden if has_expert_biases(config) else 0
        return cls(
            shape=shape,
            expert=expert,
            groups=tuple(groups),
            expert_parameters=3 * hidden * expert.width + biases,
            cache=key_value_cache(config, layers=layers),
            draft_groups=tuple(draft),
        )

    @property
    def parameters(self) -> int:
        """Parameters of the model, draft layers excluded."""
        experts = self.shape.experts * len(self.shape.moe_layers) * self.expert_parameters
        return experts + sum(group.parameters for group in self.groups)


def _vocabulary(config: Mapping[str, Any], formats: Quantisation, *, hidden: int) -> list[WeightGroup]:
    words = whole(config, "vocab_size")
    groups = [matrix("embeddings", words, hidden, formats.plain, Split.ATTENTION)]
    if not config.get("tie_word_embeddings"):
        groups.append(matrix("output head", words, hidden, formats.plain, Split.TENSOR))
    return groups


def _beside_experts(
    config: Mapping[str, Any], formats: Quantisation, shape: ModelShape, *, layers: int
) -> list[WeightGroup]:
    """Routers and shared experts of so many MoE layers."""
    hidden = whole(config, "hidden_size")
    groups = [matrix("routers", shape.experts, hidden, formats.plain, Split.WHOLE, count=layers)]
    if has_expert_biases(config) or config.get("topk_method") == "noaux_tc":
        groups.append(vector("routers", shape.experts, formats.plain, count=layers))
    shared = config.get("n_shared_experts")
    if isinstance(shared, int) and shared > 0:
        width = shared * whole(config, "moe_intermediate_size")
        groups += _shared("shared experts", hidden, width, formats, count=layers)
    elif config.get("shared_expert_intermediate_size"):
        width = whole(config, "shared_expert_intermediate_size")
        groups += _shared("shared experts", hidden, width, formats, count=layers)
        groups.append(vector("shared experts", hidden, formats.plain, count=layers))
    return groups


def _shared(name: str, hidden: int, width: int, formats: Quantisation, *, count: int) -> list[WeightGroup]:
    return [
        matrix(name, 2 * width, hidden, formats.shared, Split.SHARED, count=count),
        matrix(name, hidden, width, formats.shared, Split.SHARED, count=count),
    ]


def _feed_forward(
    name: str, hidden: int, width: int, formats: Quantisation, split: Split, *, count: int
) -> list[WeightGroup]:
    return [
        matrix(name, 2 * width, hidden, formats.dense, split, count=count),
        matrix(name, hidden, width, formats.dense, split, count=count),
    ]
