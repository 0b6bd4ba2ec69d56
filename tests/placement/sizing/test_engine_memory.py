from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import BadModelConfig, BadOption
from placement.sizing import EngineMemory, ModelWeights
from tests.placement.sizing.models import LATENT, PLAIN

GIB = 2**30
ENGINE = EngineMemory(gpus=4, gpu_memory_gib=1.0, attention_ranks=4, memory_fraction=0.5, context_gib=0.0)


def others(engine: EngineMemory, config: dict[str, Any]) -> int:
    return engine.use(ModelWeights.from_config(config), slots_per_gpu=2).other_weight_bytes


def test_every_weight_of_a_plain_model_is_counted() -> None:
    layer = 2 * 64 * 64 + 2 * 32 * 64 + 8 * 64 + 2 * 64
    assert ModelWeights.from_config(PLAIN).parameters == 2 * (layer + 8 * 3 * 64 * 32) + 2 * 64_000 + 64


def test_data_parallel_attention_keeps_attention_whole_and_divides_the_head() -> None:
    layer = 2 * 64 * 64 + 2 * 32 * 64 + 8 * 64 + 2 * 64
    assert others(ENGINE, PLAIN) == 2 * (2 * layer + 64_000 + 64_000 // 4 + 64)


def test_tensor_parallel_attention_divides_heads() -> None:
    layer = 2 * 64 * 64 // 4 + 2 * 32 * 64 // 4 + 8 * 64 + 2 * 64
    assert others(replace(ENGINE, attention_ranks=1), PLAIN) == 2 * (2 * layer + 2 * 64_000 // 4 + 64)


def test_key_value_heads_are_copied_where_there_are_too_few() -> None:
    wide = replace(ENGINE, gpus=8, attention_ranks=1)
    layer = 2 * 64 * 64 // 8 + 2 * 32 * 64 // 4 + 8 * 64 + 2 * 64
    assert others(wide, PLAIN) == 2 * (2 * layer + 2 * 64_000 // 8 + 64)


def test_shared_experts_are_whole_with_all_to_all_and_divided_without() -> None:
    with_it, without = others(ENGINE, LATENT), others(replace(ENGINE, all_to_all=False), LATENT)
    assert with_it - without == 2 * 3 * 64 * 32 * 3 // 4


def test_latent_attention_keeps_its_up_projections_twice() -> None:
    weights = ModelWeights.from_config(LATENT)
    copies = [group for group in weights.groups if group.name == "absorbed MLA"]
    assert sum(group.weight_bytes for group in copies) == 2 * 2 * 8 * (8 + 8) * 16
    assert sum(group.parameters for group in copies) == 0


@pytest.mark.parametrize(
    ("config", "ranks", "expected"),
    [
        (PLAIN, 4, 2 * 2 * 4 * 2 * 8),  # layers, keys and values, heads, bytes, head size
        (PLAIN, 1, 2 * 2 * 1 * 2 * 8),  # a head each
        (LATENT, 4, 2 * (16 + 4) * 2),
        (LATENT, 1, 2 * (16 + 4) * 2),  # the latent vector is on every GPU
    ],
)
def test_bytes_of_a_cached_token(config: dict[str, Any], ranks: int, expected: int) -> None:
    weights = ModelWeights.from_config(config)
    assert replace(ENGINE, attention_ranks=ranks).token_bytes(weights) == expected
    fp8 = replace(ENGINE, attention_ranks=ranks, cache_bytes_per_value=1.0)
    assert fp8.token_bytes(weights) == expected / 2


SPARSE = {**LATENT, "model_type": "deepseek_v32", "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}


def test_sparse_attention_keeps_an_index_key_of_its_own_format() -> None:
    """SGLang 0.5.16, ``pool_configurator.py``: index_head_dim + index_head_dim // 128 * 4 bytes, whatever the cache."""
    weights = ModelWeights.from_config(SPARSE)
    assert ENGINE.token_bytes(weights) == 2 * ((16 + 4) * 2 + 132)
    assert replace(ENGINE, cache_bytes_per_value=1.0).token_bytes(weights) == 2 * ((16 + 4) + 132)
    assert others(ENGINE, SPARSE) - others(ENGINE, LATENT) == 2 * 2 * (64 * 128 * 24 + (128 + 64) * 64 + 2 * 128)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3_next"},
        {"model_type": "mimo_v2_flash"},
        {"model_type": "llama4_text"},
        {"model_type": "deepseek_v4"},
        {"model_type": "own", "layer_types": ["linear_attention", "full_attention"]},
    ],
)
def test_models_with_other_pools_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadModelConfig, match="pools that moeplan does not size") as refused:
        ModelWeights.from_config({**PLAIN, **config})
    assert "max_total_num_tokens" in str(refused.value)


@pytest.mark.parametrize("config", [PLAIN, LATENT, SPARSE, {**PLAIN, "model_type": "qwen3_moe"}])
def test_other_models_are_sized(config: dict[str, Any]) -> None:
    assert ModelWeights.from_config(config).cache.full_layers == 2


@given(page=st.sampled_from([1, 16, 64, 128]), free_mib=st.integers(64, 4096))
def test_a_cache_holds_whole_pages_and_no_page_more_would_fit(page: int, free_mib: int) -> None:
    engine = replace(ENGINE, gpu_memory_gib=free_mib / 1024, page_tokens=page)
    use = engine.use(ModelWeights.from_config(PLAIN), slots_per_gpu=2)
    token_bytes = engine.token_bytes(ModelWeights.from_config(PLAIN))
    assert use.cache_tokens % page == 0
    assert use.cache_tokens * token_bytes <= max(0, use.cache_bytes)
    assert (use.cache_tokens + page) * token_bytes > use.cache_bytes


def test_layers_with_a_window_have_a_smaller_pool() -> None:
    config = {**PLAIN, "model_type": "gpt_oss", "layer_types": ["sliding_attention", "full_attention"]}
    assert ENGINE.token_bytes(ModelWeights.from_config(config)) == pytest.approx(1.8 * 2 * 4 * 2 * 8)


def test_the_cache_gets_the_fraction_less_the_weights() -> None:
    weights = ModelWeights.from_config(PLAIN)
    use = ENGINE.use(weights, slots_per_gpu=3)
    assert use.expert_bytes == 2 * 3 * 2 * 3 * 64 * 32
    assert use.cache_bytes == GIB // 2 - use.expert_bytes - use.other_weight_bytes
    assert use.cache_tokens == use.cache_bytes // 256
    assert use.all_cache_tokens == 4 * use.cache_tokens


def test_pages_are_whole() -> None:
    use = replace(ENGINE, page_tokens=64).use(ModelWeights.from_config(PLAIN), slots_per_gpu=3)
    assert use.cache_tokens % 64 == 0
    assert use.cache_tokens == use.cache_bytes // 256 // 64 * 64


def test_draft_layers_take_weights_and_cache() -> None:
    weights = ModelWeights.from_config(LATENT)
    drafting = replace(ENGINE, draft_layers=1)
    alone, with_draft = (each.use(weights, slots_per_gpu=2) for each in (ENGINE, drafting))
    assert with_draft.expert_bytes == 2 * alone.expert_bytes
    assert with_draft.other_weight_bytes > alone.other_weight_bytes
    assert drafting.token_bytes(weights) == 1.5 * ENGINE.token_bytes(weights)


@given(tokens=st.integers(1, 2_000_000), slots=st.integers(1, 8))
def test_most_slots_is_where_the_cache_still_fits(tokens: int, slots: int) -> None:
    weights = ModelWeights.from_config(PLAIN)
    fits = ENGINE.use(weights, slots_per_gpu=slots).cache_tokens >= tokens
    assert fits == (slots <= ENGINE.most_slots(weights, cache_tokens=tokens))


def test_the_fraction_that_sglang_takes_by_itself() -> None:
    """An H100 with 8 GPUs: 512 + 1.5 x 8192 + 1024 + 2 x 512 MiB, 62 prefill graphs of 8 MiB, 2 GiB for DeepEP."""
    engine = EngineMemory(gpus=8, gpu_memory_gib=80.0)
    reserved = 512 + 12_288 + 1024 + 1024 + 8 * 62 + 2048
    assert engine.fraction(ModelWeights.from_config(PLAIN)) == round(1 - reserved / 81_920, 3)
    dp = replace(engine, attention_ranks=8)
    padding = 4.5 * 512 * 8
    assert dp.fraction(ModelWeights.from_config(PLAIN)) == round(1 - (reserved + padding) / 81_920, 3)
    latent = 1536 - 8 * 62
    assert dp.fraction(ModelWeights.from_config(LATENT)) == round(1 - (reserved + padding + latent) / 81_920, 3)


def test_large_gpus_keep_ten_gibibytes_free() -> None:
    engine = EngineMemory(gpus=1, gpu_memory_gib=61.0, all_to_all=False)
    assert engine.fraction(ModelWeights.from_config(PLAIN)) <= 1 - 10 / 61 + 1e-3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gpu_memory_gib": 0.0}, "GPU memory is 0.0 GiB"),
        ({"memory_fraction": 1.0}, "memory fraction is 1.0"),
        ({"attention_ranks": 3}, "3 attention ranks do not divide 4 GPUs"),
        ({"context_gib": 1.0}, "taken before loading"),
        ({"page_tokens": 0}, "a page has 0 tokens"),
        ({"sliding_share": 0.0}, "share of sliding tokens"),
    ],
)
def test_bad_values_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence):
        replace(ENGINE, **change)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"])
def test_a_missing_key_is_named(key: str) -> None:
    config = {name: value for name, value in PLAIN.items() if name != key}
    with pytest.raises(BadModelConfig, match=key):
        ModelWeights.from_config(config)
