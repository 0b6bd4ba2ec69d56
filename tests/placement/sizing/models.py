"""Small configurations whose bytes can be counted by hand."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, Any] = {
    "model_type": "mixtral",
    "torch_dtype": "bfloat16",
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
"""Heads of 8 values. A layer: queries and output 64 x 64 each, keys and values 32 x 64 each, router 8 x 64."""

LATENT: dict[str, Any] = {
    **PLAIN,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "intermediate_size": 128,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
}
