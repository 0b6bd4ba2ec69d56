"""Write a random Qwen3-MoE checkpoint of about 2.5 MB: three MoE layers of 16 experts, top-4.

    python random_model.py FOLDER [--seed SEED] [--precision int8]

Some experts' router rows are longer than others', so that some are hot. Weights are float32: in bfloat16 a new layout
changes the order of sums and with it greedy outputs. In int8 the experts' weights have a float32 scale for every
row (SGLang's ``w8a8_int8``), and experts differ in the size of their scales. The tokenizer has one token per
byte.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

LAYERS, EXPERTS, TOP_K = 3, 16, 4
HIDDEN, EXPERT_WIDTH, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 64, 64, 4, 2, 16, 320

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 256,
    "eos_token_id": 256,
    "decoder_sparse_step": 1,
    "head_dim": HEAD_SIZE,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": 4 * EXPERT_WIDTH,
    "max_position_embeddings": 4096,
    "max_window_layers": LAYERS,
    "mlp_only_layers": [],
    "moe_intermediate_size": EXPERT_WIDTH,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}


INT8_EXPERTS = {"quant_method": "w8a8_int8", "ignore": ["lm_head", "re:.*self_attn.*"]}


def write_model(folder: Path, *, seed: int, precision: str = "float32") -> Path:
    """Write checkpoint, configuration and tokenizer into a folder and return it; the experts are float32 or int8."""
    of_experts = {"float32": ({}, dict), "int8": ({"quantization_config": INT8_EXPERTS}, _with_int8_experts)}
    described, packed = of_experts[precision]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | described, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 256, "eos_token_id": 256}))
    _save(packed(_weights(seed=seed)), folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def _save(tensors: dict, file: Path) -> None:
    from safetensors.torch import save_file

    save_file(tensors, file, metadata={"format": "pt"})


def _with_int8_experts(tensors: dict) -> dict:
    """Return the tensors with the experts' matrices in int8, a scale for every row, as ``w8a8_int8`` names them."""
    import torch

    packed = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." not in name:
            packed[name] = tensor
            continue
        expert = int(name.split(".experts.")[1].split(".")[0])
        tensor = tensor * (0.5 + 1.5 * expert / EXPERTS)
        scale = tensor.abs().amax(dim=1, keepdim=True) / 127
        packed[name] = torch.round(tensor / scale).to(torch.int8)
        packed[f"{name}_scale"] = scale
    return packed


def _weights(*, seed: int) -> dict:
    import torch

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std

    tensors = {
        "model.embed_tokens.weight": normal(VOCABULARY, HIDDEN, std=1.0),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": normal(VOCABULARY, HIDDEN, std=0.3),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": torch.ones(HIDDEN),
            f"{at}post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{at}self_attn.q_norm.weight": torch.ones(HEAD_SIZE),
            f"{at}self_attn.k_norm.weight": torch.ones(HEAD_SIZE),
            f"{at}self_attn.q_proj.weight": normal(HEADS * HEAD_SIZE, HIDDEN, std=HIDDEN**-0.5),
            f"{at}self_attn.k_proj.weight": normal(KV_HEADS * HEAD_SIZE, HIDDEN, std=HIDDEN**-0.5),
            f"{at}self_attn.v_proj.weight": normal(KV_HEADS * HEAD_SIZE, HIDDEN, std=HIDDEN**-0.5),
            f"{at}self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_SIZE, std=(HEADS * HEAD_SIZE) ** -0.5),
        }
        length_E = torch.empty(EXPERTS)
        length_E[torch.randperm(EXPERTS, generator=generator)] = 1.0 + 1.5 * torch.arange(1, EXPERTS + 1) ** -0.7
        tensors[f"{at}mlp.gate.weight"] = normal(EXPERTS, HIDDEN, std=HIDDEN**-0.5) * length_E[:, None]
        for expert in range(EXPERTS):
            tensors |= _mlp(f"{at}mlp.experts.{expert}.", EXPERT_WIDTH, normal)
    return tensors


def _mlp(at: str, width: int, normal) -> dict:
    return {
        f"{at}gate_proj.weight": normal(width, HIDDEN, std=HIDDEN**-0.5),
        f"{at}up_proj.weight": normal(width, HIDDEN, std=HIDDEN**-0.5),
        f"{at}down_proj.weight": normal(HIDDEN, width, std=2.0 * width**-0.5),
    }


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with one token per byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>", model_max_length=4096
    ).save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--precision", choices=("float32", "int8"), default="float32")
    chosen = parser.parse_args()
    print(write_model(chosen.folder, seed=chosen.seed, precision=chosen.precision))
