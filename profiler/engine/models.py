"""Which models SGLang can serve with another layout than the trivial one."""

from __future__ import annotations

from collections.abc import Collection

MODELS_WITHOUT_EXPERT_LOCATION = frozenset(
    {
        "AfmoeForCausalLM",
        "Cohere2MoeForCausalLM",
        "DbrxForCausalLM",
        "DeepseekForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "Ernie4_5_VLMoeForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "GraniteMoeForCausalLM",
        "Grok1ForCausalLM",
        "Grok1ModelForCausalLM",
        "HYV3ForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "InternS1ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "KimiVLForConditionalGeneration",
        "LagunaForCausalLM",
        "Lfm2MoeForCausalLM",
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
        "MixtralForCausalLM",
        "OlmoeForCausalLM",
        "PhiMoEForCausalLM",
        "Qwen3OmniMoeForConditionalGeneration",
        "XverseMoeForCausalLM",
        "ZayaForCausalLM",
    }
)
"""Architectures with experts whose class has no ``get_model_config_for_expert_location``, neither in SGLang 0.5.16 nor
in 0.5.23. SGLang then starts neither with a layout nor with its recorder; it does return the routed experts of
requests."""


def without_expert_location(architectures: Collection[str]) -> str | None:
    """Return the first of a model's architectures that SGLang gives no expert location, None where all may have one."""
    return next((name for name in architectures if name in MODELS_WITHOUT_EXPERT_LOCATION), None)
