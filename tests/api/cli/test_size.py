"""``moeplan size`` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.recordings import MIXED, recording_path
from tests.api.cli.command import Moeplan, write_json

PUBLIC_RECORDINGS = Path(__file__).resolve().parents[4] / "shared" / "data"

CONFIG = {
    "model_type": "qwen3_moe",
    "vocab_size": 8192,
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 2048,
    "moe_intermediate_size": 2048,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}
"""Experts of 12 MiB, 72 MiB in six layers."""


@pytest.fixture
def arguments(tmp_path: Path) -> list[object]:
    model = write_json(tmp_path / "config.json", CONFIG)
    return [
        "size", recording_path(MIXED), "--gpus", 4, "--model", model, "--gpu-memory-gib", 4, "--context-gib", 0,
        "--mem-fraction-static", 0.9, "--rows", 3,
    ]  # fmt: skip


def test_rows_say_what_slots_buy_and_cost(moeplan: Moeplan, arguments: list[object]) -> None:
    ran = moeplan(*arguments, "--json")
    assert ran.code == 0
    rows = ran.json["rows"]
    assert [row["memory"]["slots_per_gpu"] for row in rows] == sorted(row["memory"]["slots_per_gpu"] for row in rows)
    assert all(row["gpus_per_token"] is not None for row in rows if row["fits"])
    assert ran.json["target_row"]["local_gpu"] >= 0.6
    assert ran.json["most_slots"] == 32


def test_the_answer_is_a_sentence(moeplan: Moeplan, arguments: list[object]) -> None:
    ran = moeplan(*arguments, "--hardware", "h200", "--step-phase", "decode")
    assert "60% on the own GPU is reached with" in ran.out
    assert "us per MoE layer" in ran.out
    assert "reaches the target" in ran.out


def test_a_target_that_does_not_fit_is_said_and_ends_with_its_code(moeplan: Moeplan, arguments: list[object]) -> None:
    arguments[arguments.index("--gpu-memory-gib") + 1] = 1
    ran = moeplan(*arguments, "--local-target", 0.9)
    assert ran.code == 4
    assert "90% on the own GPU cannot be had: it needs at least" in ran.out
    assert "the best own-GPU share that fits is" in ran.out
    assert "on the own node it is 1.0000" in ran.out
    assert "does not fit" in ran.out


def test_what_cannot_fit_is_refused_with_remedies(moeplan: Moeplan, arguments: list[object]) -> None:
    arguments[arguments.index("--gpu-memory-gib") + 1] = 0.5
    line = moeplan.refused(*arguments, code="NOT_ENOUGH_MEMORY", exit_code=3)
    assert "8 per GPU" in line


def test_another_models_recording_is_refused(moeplan: Moeplan, arguments: list[object]) -> None:
    arguments[arguments.index("--model") + 1] = "mixtral-8x7b"
    moeplan.refused(*arguments, code="INPUTS_DISAGREE")


def test_draft_layers_that_the_model_lacks_are_refused(moeplan: Moeplan, arguments: list[object]) -> None:
    line = moeplan.refused(*arguments, "--draft-layers", 1, code="BAD_OPTION")
    assert "the model has 0 draft" in line


@pytest.mark.parametrize(
    ("name", "needed"), [("prefill_in1024", 94), ("prefill_in4096", 82), ("decode_in1000out1000", 98)]
)
def test_deepseek_v3_on_eight_gpus_cannot_have_the_target_and_is_offered_what_fits(
    moeplan: Moeplan, name: str, needed: int
) -> None:
    recording = PUBLIC_RECORDINGS / f"deepseek-v3-{name}.json"
    if not recording.exists():
        pytest.skip(f"no {recording.name} beside the checkout")
    options = ("--gpus", 8, "--model", "deepseek-v3", "--gpu-memory-gib", 140.4, "--rows", 2)
    ran = moeplan("size", recording, *options, "--json")
    assert ran.code == 0
    assert ran.json["slots_for_target"] == needed
    assert ran.json["most_slots"] < needed
    assert ran.json["target_row"] is None
    last = ran.json["rows"][-1]
    assert (last["memory"]["slots_per_gpu"], last["fits"]) == (needed, False)
    best = max(row["local_gpu"] for row in ran.json["rows"] if row["fits"])
    said = moeplan("size", recording, *options, "--local-target", 0.6)
    assert said.code == 4
    assert f"60% on the own GPU cannot be had: it needs at least {needed} slots" in said.out
    assert f"the best own-GPU share that fits is {best:.4f}" in said.out
    assert "on the own node it is 1.0000" in said.out
