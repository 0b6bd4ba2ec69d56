"""Attention of a model: its weights and what it keeps of every token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placement.errors import BadModelConfig
from placement.sizing.weight_group import Split, WeightGroup, matrix, vector
from placement.weight_formats import Quantisation

SLIDING_POOLS = ("gpt_oss",)
"""Model types for which SGLang keeps a cache of its own for layers with a sliding window."""


OTHER_POOLS = (
    *("afmoe", "cohere2_moe", "deepseek_v4", "gemma4", "inkling", "laguna", "llama4", "mellum", "mimo_v2", "step3p5"),
    *("bailing_hybrid", "falcon_h1", "granitemoehybrid", "jamba", "jet_nemotron", "kimi_linear", "lfm2", "minimax_m1"),
    *("minimax_m3", "nemotron_h", "qwen3_5", "qwen3_next", "zaya"),
)
"""Beginnings of model types that have window pools, states of linear attention or sparse pools instead."""

INDEX_BLOCK = 128
"""Values of an index key that share one float32 scale (DeepSeek sparse attention, ``DSATokenToKVPool`` in SGLang)."""


@dataclass(frozen=True)
class KeyValueCache:
    """What is kept of a token.

    Attributes
    ----------
    full_layers, sliding_layers : int
        Layers with the whole context, and with a window that has a pool of its own.
    values : int
        Of a token and layer: keys and values of one head, or MLA's latent vector.
    heads : int
        Key-value heads; 1 for MLA, whose latent vector every rank keeps.
    latent : bool
        Whether it is MLA.
    index_bytes : int
        Of the key of sparse attention's indexer in one layer, on every rank and in its own number format.
    """

    full_layers: int
    sliding_layers: int
    values: int
    heads: int
    latent: bool = False
    index_bytes: int = 0

    def bytes_per_token(self, *, ranks: int, bytes_per_value: float, sliding_share: float) -> float:
        """Return the bytes that one GPU keeps of a token of its own.

        Parameters
        ----------
        ranks
            GPUs that share the attention of a token; heads are divided among them, down to one each.
        sliding_share
            Tokens in the pool of sliding layers over those in the other (``--swa-full-tokens-ratio``).
        """
        layers = self.full_layers + sliding_share * self.sliding_layers if self.full_layers else self.sliding_layers
        return layers * (max(1, self.heads // ranks) * self.values * bytes_per_value + self.index_bytes)


def attention_groups(config: Mapping[str, Any], formats: Quantisation, *, layers: int) -> list[WeightGroup]:
    """Return the attention weights of all layers."""
    if config.get("kv_lora_rank"):
        return _latent(config, formats, layers=layers)
    hidden, heads, kv_heads, head = _sizes(config)
    packed, plain = formats.attention, formats.plain
    groups = [
        matrix("attention", heads * head, hidden, packed, Split.ATTENTION, pieces=heads, count=layers),
        matrix("attention", 2 * kv_heads * head, hidden, packed, Split.ATTENTION, pieces=kv_heads, count=layers),
        matrix("attention", hidden, heads * head, packed, Split.ATTENTION, pieces=heads, count=layers),
    ]
    if config.get("attention_bias") or config.get("model_type") == "qwen2_moe":
        output = hidden if config.get("model_type") == "gpt_oss" else 0
        groups.append(vector("attention biases", (heads + 2 * kv_heads) * head + output, plain, count=layers))
    if config.get("model_type") == "gpt_oss":
        groups.append(vector("attention sinks", heads, plain, count=layers))
    if config.get("model_type") == "qwen3_moe":
        groups.append(vector("norms", 2 * head, plain, count=layers))
    return groups


def key_value_cache(config: Mapping[str, Any], *, layers: int) -> KeyValueCache:
    """Return what an engine keeps of a token.

    Raises
    ------
    BadModelConfig
        The model keeps something else than keys and values of tokens, so that its cache would be sized wrongly.
    """
    _require_plain_cache(config)
    if config.get("kv_lora_rank"):
        values = whole(config, "kv_lora_rank") + whole(config, "qk_rope_head_dim")
        return KeyValueCache(layers, 0, values, 1, latent=True, index_bytes=_index_bytes(config))
    _, _, kv_heads, head = _sizes(config)
    types = config.get("layer_types")
    sliding = 0
    if config.get("model_type") in SLIDING_POOLS and isinstance(types, list):
        sliding = sum(each == "sliding_attention" for each in types)
    return KeyValueCache(layers - sliding, sliding, 2 * head, kv_heads)


def _require_plain_cache(config: Mapping[str, Any]) -> None:
    kind, layers = str(config.get("model_type", "")), config.get("layer_types")
    if kind.startswith(OTHER_POOLS) or (isinstance(layers, list) and "linear_attention" in layers):
        raise BadModelConfig(
            f"model_type is {kind!r}, whose cache has pools that moeplan does not size (windows, linear or sparse "
            "attention); take max_total_num_tokens from the log of an engine that runs it."
        )


def _index_bytes(config: Mapping[str, Any]) -> int:
    if config.get("index_topk") is None:
        return 0
    size = whole(config, "index_head_dim")
    return size + size // INDEX_BLOCK * 4


def whole(config: Mapping[str, Any], key: str) -> int:
    """Return a whole number of at least 1, or refuse naming the key."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadModelConfig(f"{key} is {value!r}; a whole number of at least 1 is needed to size a model.")
    return value


def _sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    kv_heads = whole(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    head = whole(config, "head_dim") if config.get("head_dim") is not None else hidden // heads
    return hidden, heads, kv_heads, head


def _latent(config: Mapping[str, Any], formats: Quantisation, *, layers: int) -> list[WeightGroup]:
    """Multi-head latent attention of DeepSeek-V2 (arXiv 2405.04434)."""
    hidden, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    latent, rope = whole(config, "kv_lora_rank"), whole(config, "qk_rope_head_dim")
    nope, value = whole(config, "qk_nope_head_dim"), whole(config, "v_head_dim")
    packed, plain = formats.attention, formats.plain
    queries = heads * (nope + rope)
    groups = [
        matrix("attention", latent + rope, hidden, packed, Split.WHOLE, count=layers),
        matrix("attention", heads * (nope + value), latent, packed, Split.ATTENTION, pieces=heads, count=layers),
        matrix("attention", hidden, heads * value, packed, Split.ATTENTION, pieces=heads, count=layers),
        vector("norms", latent, plain, count=layers),
        # For decoding SGLang keeps the up-projections a second time, in the order that absorbs them, in 16 bits.
        matrix(
            "absorbed MLA", heads * (nope + value), latent, plain, Split.ATTENTION, pieces=heads, count=layers
        ).copied(),
    ]
    if config.get("index_topk") is not None:
        index_heads, size = whole(config, "index_n_heads"), whole(config, "index_head_dim")
        groups += [
            matrix("indexer", index_heads * size, whole(config, "q_lora_rank"), packed, Split.WHOLE, count=layers),
            matrix("indexer", size + index_heads, hidden, plain, Split.WHOLE, count=layers),
            vector("norms", 2 * size, plain, count=layers),
        ]
    if config.get("q_lora_rank"):
        squeezed = whole(config, "q_lora_rank")
        groups += [
            matrix("attention", squeezed, hidden, packed, Split.WHOLE, count=layers),
            matrix("attention", queries, squeezed, packed, Split.ATTENTION, pieces=heads, count=layers),
            vector("norms", squeezed, plain, count=layers),
        ]
    else:
        groups.append(matrix("attention", queries, hidden, packed, Split.ATTENTION, pieces=heads, count=layers))
    return groups
