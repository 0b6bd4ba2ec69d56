"""Random checkpoints of Qwen3-MoE and DeepSeek-V2, written on the machine that runs the acceptance (needs torch).

    python -m tests.gpu.checkpoints FOLDER KIND DEVICE    KIND: a name of CHECKPOINTS

Weights are random, so texts mean nothing; sizes, routing skew and arithmetic are those of a served model.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.gpu.deepseek_weights import deepseek_config, latent_attention


@dataclass(frozen=True)
class Checkpoint:
    """Sizes of a random checkpoint.

    Attributes
    ----------
    layers : int
        Those with experts.
    experts, top_k, hidden, expert_width, heads, kv_heads, head_size, vocabulary : int
    domains : int
        0: some experts are hot for all tokens. D: the vocabulary falls into D equal parts, and tokens of part d
        mostly choose experts e with ``e % D == d``.
    pull, pull_spread : float
        Logits that an expert gains for tokens of its domain, from ``pull - pull_spread`` to ``pull + pull_spread``,
        evenly over a domain's experts and differently in every layer: the more of the first, the fewer tokens leave
        their domain, the more of the second, the less even the experts' loads.
    stay : float
        Logits that tokens of a domain gain after a token of it: with 10, of a thousand tokens that a request draws at
        temperature 1 about one leaves its domain.
    attention : {"plain", "mla"}
        ``mla``: a DeepSeek-V2 with its latent attention; else a Qwen3-MoE.
    dense_layers, dense_width, shared_experts : int
        Of a DeepSeek-V2: layers without experts before all others and their width, experts that every token passes.
    """

    layers: int
    experts: int
    top_k: int
    hidden: int
    expert_width: int
    domains: int = 0
    pull: float = 8.0
    pull_spread: float = 0.0
    heads: int = 16
    kv_heads: int = 4
    head_size: int = 128
    vocabulary: int = 512
    dtype: str = "bfloat16"
    stay: float = 0.0
    attention: Literal["plain", "mla"] = "plain"
    dense_layers: int = 0
    dense_width: int = 0
    shared_experts: int = 0

    @property
    def decoder_layers(self) -> int:
        return self.dense_layers + self.layers

    def domain_tokens(self, domain: int) -> range:
        """Return the token ids of one domain, the whole vocabulary where there are none."""
        part = self.vocabulary // max(1, self.domains)
        return range(part * domain, part * (domain + 1))

    def config(self) -> dict[str, Any]:
        """Return ``config.json``."""
        if self.attention == "mla":
            return deepseek_config(self)
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 256,
            "eos_token_id": 256,
            "decoder_sparse_step": 1,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": 4 * self.expert_width,
            "max_position_embeddings": 8192,
            "max_window_layers": self.layers,
            "mlp_only_layers": [],
            "moe_intermediate_size": self.expert_width,
            "norm_topk_prob": True,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "output_router_logits": False,
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.001,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": self.dtype,
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": self.vocabulary,
        }


_SOFT = {"pull": 2.0, "pull_spread": 0.75}  # about a tenth of all pairs leave the domain, some experts are hot
_SMALL = {"heads": 4, "kv_heads": 2, "head_size": 16, "dtype": "float32"}

_LITE = {"experts": 64, "top_k": 6, "hidden": 2048, "expert_width": 1408, "stay": 10.0, **_SOFT}
_MLA = {"attention": "mla", "dense_layers": 1, "dense_width": 10944, "shared_experts": 2}
_MIXTRAL = {"experts": 8, "top_k": 2, "hidden": 4096, "expert_width": 14336, "heads": 32, "kv_heads": 8, "stay": 10.0}

CHECKPOINTS = {
    # Experts of 18.9 MB: 4 x 72 slots are 5.4 GB, which is what a push has to move.
    "hot": Checkpoint(layers=4, experts=64, top_k=8, hidden=2048, expert_width=1536),
    # As deep as DeepSeek-V2-Lite and with its experts; its weights are left to the engine (write_configuration).
    "deep": Checkpoint(layers=26, experts=64, top_k=6, hidden=2048, expert_width=1408),
    "small-deep": Checkpoint(layers=6, experts=16, top_k=4, hidden=64, expert_width=64, **_SMALL),
    # DeepSeek-V2-Lite's expert shape.
    "two-domains": Checkpoint(layers=4, experts=64, top_k=8, hidden=2048, expert_width=1408, domains=2),
    "four-domains": Checkpoint(layers=4, experts=64, top_k=8, hidden=2048, expert_width=1408, domains=4, **_SOFT),
    "eight-domains": Checkpoint(layers=4, experts=64, top_k=8, hidden=2048, expert_width=1408, domains=8, **_SOFT),
    "small-hot": Checkpoint(layers=3, experts=16, top_k=4, hidden=64, expert_width=64, **_SMALL),
    "small-two-domains": Checkpoint(layers=3, experts=16, top_k=4, hidden=64, expert_width=64, domains=2, **_SMALL),
    "small-soft-domains": Checkpoint(
        layers=3, experts=16, top_k=4, hidden=64, expert_width=64, domains=2, **_SOFT, **_SMALL
    ),
}
for _domains in (2, 4, 8):
    # DeepSeek-V2-Lite with 4 of its 26 layers with experts, and its experts behind Qwen3's attention.
    CHECKPOINTS[f"lite-mla-{_domains}"] = Checkpoint(layers=4, domains=_domains, **_LITE, **_MLA)  # type: ignore[arg-type]
    CHECKPOINTS[f"lite-plain-{_domains}"] = Checkpoint(layers=4, domains=_domains, **_LITE)  # type: ignore[arg-type]
for _domains in (2, 4):
    # Mixtral 8x7B's sizes in Qwen3's architecture: for Mixtral's own, SGLang has no expert location.
    CHECKPOINTS[f"mixtral-{_domains}"] = Checkpoint(layers=2, domains=_domains, **_MIXTRAL, **_SOFT)  # type: ignore[arg-type]


def write_configuration(folder: Path, model: Checkpoint) -> Path:
    """Write configuration and tokenizer; an engine makes up weights of its own with ``--load-format dummy``."""
    from tests.engine.kit.random_model import write_tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config(), indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 256, "eos_token_id": 256}))
    write_tokenizer(folder)
    return folder


def write_checkpoint(folder: Path, model: Checkpoint, *, device: str) -> Path:
    """Write configuration, weights and tokenizer, once; return the folder."""
    if (folder / "model.safetensors.index.json").exists():
        return folder
    write_configuration(folder, model)
    files = {name: name_of_file for name_of_file, names in _write_weights(folder, model, device) for name in names}
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _write_weights(folder: Path, model: Checkpoint, device: str) -> list[tuple[str, list[str]]]:
    import torch
    from safetensors.torch import save_file

    draw = torch.Generator(device=device).manual_seed(1234)
    dtype = getattr(torch, model.dtype)
    written = []

    def normal(*shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, device=device) * std

    def save(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(
            {key: value.to(dtype).cpu().contiguous() for key, value in tensors.items()},
            folder / name,
            metadata={"format": "pt"},
        )
        written.append((name, list(tensors)))

    hidden = model.hidden
    embedding, pull_EH, stay_VH = _embedding_and_pulls(model, normal)
    top = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": normal(model.vocabulary, hidden, std=0.05) + stay_VH,
    }
    save("model-top.safetensors", top)
    attention = latent_attention if model.attention == "mla" else _plain_attention
    for layer in range(model.decoder_layers):
        at = f"model.layers.{layer}."
        tensors = {
            f"{at}input_layernorm.weight": torch.ones(hidden),
            f"{at}post_attention_layernorm.weight": torch.ones(hidden),
            **attention(model, f"{at}self_attn.", normal),
        }
        if layer < model.dense_layers:
            tensors |= _mlp(f"{at}mlp.", hidden, model.dense_width, normal)
        else:
            tensors[f"{at}mlp.gate.weight"] = _router(model, layer - model.dense_layers, normal, pull_EH)
            for expert in range(model.experts):
                tensors |= _mlp(f"{at}mlp.experts.{expert}.", hidden, model.expert_width, normal)
            if model.shared_experts:
                width = model.shared_experts * model.expert_width
                tensors |= _mlp(f"{at}mlp.shared_experts.", hidden, width, normal)
        save(f"model-layer{layer}.safetensors", tensors)
    return written


def _plain_attention(model: Checkpoint, at: str, normal: Any) -> dict[str, Any]:
    import torch

    hidden, size = model.hidden, model.head_size
    return {
        f"{at}q_norm.weight": torch.ones(size),
        f"{at}k_norm.weight": torch.ones(size),
        f"{at}q_proj.weight": normal(model.heads * size, hidden, std=hidden**-0.5),
        f"{at}k_proj.weight": normal(model.kv_heads * size, hidden, std=hidden**-0.5),
        f"{at}v_proj.weight": normal(model.kv_heads * size, hidden, std=hidden**-0.5),
        f"{at}o_proj.weight": normal(hidden, model.heads * size, std=0.2 * (model.heads * size) ** -0.5),
    }


def _mlp(at: str, hidden: int, width: int, normal: Any) -> dict[str, Any]:
    return {
        f"{at}gate_proj.weight": normal(width, hidden, std=hidden**-0.5),
        f"{at}up_proj.weight": normal(width, hidden, std=hidden**-0.5),
        f"{at}down_proj.weight": normal(hidden, width, std=0.4 * width**-0.5),
    }


def _embedding_and_pulls(model: Checkpoint, normal: Any) -> tuple[Any, Any, Any]:
    """Return the embedding [V, H], and what is added to router rows [E, H] and to the head [V, H] for domains.

    With domains, half of a token's embedding (by norm) is its domain's direction, so that router rows can see it.
    A router row gains so much for one logit. Without domains the second is None and the third 0.
    """
    import torch

    embedding = normal(model.vocabulary, model.hidden, std=1.0)
    if not model.domains:
        return embedding, None, 0.0
    direction_DH = torch.linalg.qr(normal(model.hidden, model.domains, std=1.0))[0].T
    embedding = embedding - (embedding @ direction_DH.T) @ direction_DH
    domain_V = torch.arange(model.vocabulary, device=embedding.device) // (model.vocabulary // model.domains)
    embedding = embedding + model.hidden**0.5 * direction_DH[domain_V]
    domain_E = torch.arange(model.experts, device=embedding.device) % model.domains
    one_logit_DH = direction_DH / (model.hidden / 2) ** 0.5
    return embedding, one_logit_DH[domain_E], model.stay * one_logit_DH[domain_V]


def _router(model: Checkpoint, layer: int, normal: Any, pull_EH: Any) -> Any:
    import torch

    rows_EH = normal(model.experts, model.hidden, std=model.hidden**-0.5)
    if pull_EH is not None:
        pull_E = torch.full((model.experts,), model.pull)
        each = model.experts // model.domains
        for domain in range(model.domains):
            order = torch.randperm(each, generator=torch.Generator().manual_seed(1000 * layer + domain))
            pull_E[domain :: model.domains] += model.pull_spread * (2.0 * order / (each - 1) - 1.0)
        return rows_EH + pull_E.to(rows_EH.device)[:, None] * pull_EH
    # A longer row wins top-k more often: a few hot experts, others in every layer.
    order_E = torch.randperm(model.experts, generator=torch.Generator().manual_seed(100 + layer))
    length_E = torch.empty(model.experts)
    length_E[order_E] = 1.0 + 1.5 * torch.arange(1, model.experts + 1) ** -0.7
    return rows_EH * length_E.to(rows_EH.device)[:, None]


if __name__ == "__main__":
    print(write_checkpoint(Path(sys.argv[1]), CHECKPOINTS[sys.argv[2]], device=sys.argv[3]))
