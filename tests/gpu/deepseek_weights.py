"""What DeepSeek-V2's checkpoints have beside routers and experts: latent attention, dense layers, shared experts.

Sizes that are not the model's own are DeepSeek-V2-Lite's (arXiv 2405.04434; its ``config.json``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tests.gpu.checkpoints import Checkpoint

    Normal = Callable[..., torch.Tensor]

LATENT, ROPE_SIZE, PLAIN_SIZE, VALUE_SIZE = 512, 64, 128, 128
"""Values of a token's latent vector; of a head's query and key, with and without positions; of a head's value."""


def deepseek_config(model: Checkpoint) -> dict[str, Any]:
    """Return ``config.json``."""
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 256,
        "eos_token_id": 256,
        "first_k_dense_replace": model.dense_layers,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "initializer_range": 0.02,
        "intermediate_size": model.dense_width,
        "kv_lora_rank": LATENT,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": model.expert_width,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": model.experts,
        "n_shared_experts": model.shared_experts,
        "norm_topk_prob": False,
        "num_attention_heads": model.heads,
        "num_experts_per_tok": model.top_k,
        "num_hidden_layers": model.decoder_layers,
        "num_key_value_heads": model.heads,
        "q_lora_rank": None,
        "qk_nope_head_dim": PLAIN_SIZE,
        "qk_rope_head_dim": ROPE_SIZE,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "torch_dtype": model.dtype,
        "use_cache": True,
        "v_head_dim": VALUE_SIZE,
        "vocab_size": model.vocabulary,
    }


def latent_attention(model: Checkpoint, at: str, normal: Normal) -> dict[str, torch.Tensor]:
    """Return the attention of one decoder layer, whose names begin with ``at``."""
    import torch

    hidden, heads = model.hidden, model.heads
    return {
        f"{at}kv_a_layernorm.weight": torch.ones(LATENT),
        f"{at}q_proj.weight": normal(heads * (PLAIN_SIZE + ROPE_SIZE), hidden, std=hidden**-0.5),
        f"{at}kv_a_proj_with_mqa.weight": normal(LATENT + ROPE_SIZE, hidden, std=hidden**-0.5),
        f"{at}kv_b_proj.weight": normal(heads * (PLAIN_SIZE + VALUE_SIZE), LATENT, std=LATENT**-0.5),
        f"{at}o_proj.weight": normal(hidden, heads * VALUE_SIZE, std=0.2 * (heads * VALUE_SIZE) ** -0.5),
    }
