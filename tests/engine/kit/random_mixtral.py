"""Write a random Mixtral checkpoint of about 1 MB, for which SGLang has no expert location: 2 layers, 8 experts, top-2.

    python random_mixtral.py FOLDER

Tokenizer and precision are those of ``random_model.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from random_model import write_tokenizer

LAYERS, EXPERTS, TOP_K = 2, 8, 2
HIDDEN, EXPERT_WIDTH, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 64, 64, 4, 2, 16, 320

CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "attention_dropout": 0.0,
    "bos_token_id": 256,
    "eos_token_id": 256,
    "head_dim": HEAD_SIZE,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": EXPERT_WIDTH,
    "max_position_embeddings": 4096,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "num_local_experts": EXPERTS,
    "output_router_logits": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
}


def write_mixtral(folder: Path) -> Path:
    """Write checkpoint, configuration and tokenizer into a folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 256, "eos_token_id": 256}))
    _write_weights(folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def _write_weights(file: Path) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1234)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN) * HIDDEN**0.5,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": torch.ones(HIDDEN),
            f"{at}post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{at}self_attn.q_proj.weight": matrix(HEADS * HEAD_SIZE, HIDDEN),
            f"{at}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{at}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{at}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_SIZE),
            f"{at}block_sparse_moe.gate.weight": matrix(EXPERTS, HIDDEN),
        }
        for expert in range(EXPERTS):
            of_expert = f"{at}block_sparse_moe.experts.{expert}."
            tensors |= {
                f"{of_expert}w1.weight": matrix(EXPERT_WIDTH, HIDDEN),
                f"{of_expert}w2.weight": matrix(HIDDEN, EXPERT_WIDTH),
                f"{of_expert}w3.weight": matrix(EXPERT_WIDTH, HIDDEN),
            }
    save_file(tensors, file, metadata={"format": "pt"})


if __name__ == "__main__":
    print(write_mixtral(Path(sys.argv[1])))
