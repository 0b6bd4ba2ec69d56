"""Model shapes read from the configurations of the model families."""

from __future__ import annotations

import pytest

from placement.errors import BadModelConfig
from placement.model_shape import ModelShape

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "n_group": 8,
}
QWEN3 = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def test_deepseek_v3_has_three_dense_layers_a_draft_layer_and_groups():
    shape = ModelShape.from_config(DEEPSEEK_V3)

    assert (shape.layers, shape.experts, shape.top_k) == (61, 256, 8)
    assert shape.moe_layers == tuple(range(3, 61))
    assert (shape.draft_layers, shape.expert_groups, shape.name) == (1, 8, "deepseek_v3")


def test_qwen_has_experts_in_every_layer():
    shape = ModelShape.from_config(QWEN3, name="mine")

    assert shape.moe_layers == tuple(range(48))
    assert (shape.expert_groups, shape.draft_layers, shape.name) == (None, 0, "mine")


def test_sparse_steps_and_dense_layers_of_qwen_are_followed():
    shape = ModelShape.from_config({**QWEN3, "num_hidden_layers": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]})

    assert shape.moe_layers == (1, 5, 7)


def test_frequencies_of_deepseek_are_followed_as_number_and_as_list():
    as_number = {**DEEPSEEK_V3, "num_hidden_layers": 6, "first_k_dense_replace": 1, "moe_layer_freq": 2}
    as_list = {**DEEPSEEK_V3, "num_hidden_layers": 4, "moe_layer_freq": [0, 1, 1, 0]}

    assert ModelShape.from_config(as_number).moe_layers == (2, 4)
    assert ModelShape.from_config(as_list).moe_layers == (1, 2)


def test_the_language_model_inside_a_multimodal_configuration_is_read():
    shape = ModelShape.from_config({"vision_config": {"num_hidden_layers": 2}, "text_config": QWEN3})

    assert (shape.layers, shape.experts) == (48, 128)


@pytest.mark.parametrize(
    ("expert_key", "top_k_key"),
    [
        ("num_local_experts", "num_experts_per_tok"),
        ("moe_num_experts", "moe_topk"),
        ("num_experts", "experts_per_token"),
    ],
)
def test_other_names_of_the_same_sizes_are_known(expert_key, top_k_key):
    shape = ModelShape.from_config({"num_hidden_layers": 2, expert_key: 8, top_k_key: 2})

    assert (shape.experts, shape.top_k) == (8, 2)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, "num_hidden_layers"),
        ({"num_hidden_layers": 32, "hidden_size": 64}, "is it a Mixture-of-Experts model"),
        ({**QWEN3, "num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({**QWEN3, "num_experts": "many"}, "num_experts is 'many'"),
        ({**QWEN3, "num_experts": True}, "num_experts is True"),
        ({**QWEN3, "num_experts_per_tok": 129}, "top-k is 129 but there are only 128 experts"),
        ({**QWEN3, "mlp_only_layers": list(range(48))}, "none of the 48 layers has experts"),
        ({**QWEN3, "mlp_only_layers": 3}, "mlp_only_layers is 3"),
        ({**QWEN3, "decoder_sparse_step": "two"}, "decoder_sparse_step is 'two'"),
        ({**DEEPSEEK_V3, "first_k_dense_replace": -1}, "first_k_dense_replace is -1"),
        ({**DEEPSEEK_V3, "moe_layer_freq": 1.5}, "moe_layer_freq is 1.5"),
        ({**DEEPSEEK_V3, "num_nextn_predict_layers": "one"}, "num_nextn_predict_layers is 'one'"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_with_its_key(config, found):
    with pytest.raises(BadModelConfig, match=found):
        ModelShape.from_config(config)
