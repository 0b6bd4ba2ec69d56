from __future__ import annotations

from typing import Any

import pytest

from placement.errors import BadModelConfig
from placement.model_shape import ExpertShape
from placement.weight_formats import Quantisation

OUT, IN = 4096, 2048


def experts(**quantization: Any) -> tuple[int, str]:
    kind = Quantisation.from_config({"quantization_config": quantization}).experts
    return kind.matrix_bytes(OUT, IN), kind.arithmetic


def test_plain_weights_take_their_type() -> None:
    for name, size in (("bfloat16", 2), ("float32", 4), ("torch.float16", 2)):
        assert Quantisation.from_config({"torch_dtype": name}).experts.matrix_bytes(OUT, IN) == size * OUT * IN


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, (OUT * IN + 32 * 16 * 4, "fp8")),
        ({"quant_method": "fp8"}, (OUT * IN + 4, "fp8")),
        ({"quant_method": "mxfp4"}, (OUT * IN // 2 + OUT * IN // 32, "bf16")),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, (OUT * IN // 2 + OUT * (IN // 128) * 5 // 2, "bf16")),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, (OUT * IN + OUT * 3, "bf16")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, (OUT * IN // 2 + OUT * IN // 16, "bf16")),
        ({"quant_method": "w8a8_int8"}, (OUT * IN + OUT * 4, "bf16")),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
            },
            (OUT * IN + OUT * 4, "fp8"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
            },
            (OUT * IN // 2 + OUT * (IN // 32) * 5 // 2, "bf16"),
        ),
    ],
)
def test_scales_are_counted(quantization: dict[str, Any], expected: tuple[int, str]) -> None:
    assert experts(**quantization) == expected


def test_blocks_that_do_not_divide_are_whole_blocks() -> None:
    kind = Quantisation.from_config(
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    ).experts
    assert kind.matrix_bytes(129, 1) == 129 + 2 * 4


def test_modules_left_out_stay_plain() -> None:
    quantization = {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["model.layers.0.self_attn"]}
    formats = Quantisation.from_config({"quantization_config": quantization})
    assert formats.attention == formats.plain
    assert formats.experts.name == "int4"


def test_mxfp4_is_of_experts_alone() -> None:
    formats = Quantisation.from_config({"quantization_config": {"quant_method": "mxfp4"}})
    assert (formats.experts.name, formats.attention.name, formats.dense.name) == ("mxfp4", "bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"torch_dtype": "int3"}, "torch_dtype is 'int3'; known ones are float32"),
        ({"quantization_config": {"quant_method": "zip"}}, "quant_method is 'zip'; known ones are fp8, mxfp4"),
        ({"quantization_config": 4}, "a JSON object is needed"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "two whole numbers"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 5}}, "bits is 5"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 0}}, "group_size is 0"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "config_groups"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "INT3"}}, "FP8 and NVFP4 are known"),
    ],
)
def test_what_is_not_known_is_named(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadModelConfig, match=sentence):
        Quantisation.from_config(config)


def test_an_expert_has_three_matrices() -> None:
    shape = ExpertShape.from_config({"hidden_size": 256, "moe_intermediate_size": 128, "intermediate_size": 999})
    assert (shape.weight_bytes, shape.flops_per_row) == (2 * 3 * 256 * 128, 6 * 256 * 128)
