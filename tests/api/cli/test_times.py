"""Predicted times beside a plan: what is printed, kept and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.plan_file import read_plan
from profiler.recordings import AFFINITY, MIXED, recording_path
from tests.api.cli.command import Moeplan, write_json

GPUS, SLOTS = 4, 16


@pytest.fixture(scope="module")
def recording() -> Path:
    return recording_path(MIXED)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Experts of the size of Qwen3-30B's."""
    shape = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 4}
    return write_json(tmp_path / "config.json", {**shape, "num_hidden_layers": 6})


@pytest.fixture
def arguments(recording: Path, model: Path, tmp_path: Path) -> list[object]:
    return [
        "plan", recording, "--gpus", GPUS, "--slots-per-gpu", SLOTS, "--model", model, "--hardware", "h200", "--out",
        tmp_path / "plan.json",
    ]  # fmt: skip


def test_every_layout_has_its_time_and_the_plan_keeps_it(
    moeplan: Moeplan, arguments: list[object], tmp_path: Path
) -> None:
    ran = moeplan(*arguments, "--json")
    assert ran.code == 0
    rows = {**ran.json["baselines"], "moeplan": ran.json["metrics"]}
    for row in rows.values():
        time = row["moe_layer"]
        assert (time["hardware"], time["phase"], time["tokens_per_gpu"]) == ("h200", "prefill", 8192)
        assert time["basis"] == "tokens"
        assert time["moe_layer_s"] == pytest.approx(time["expert_s"] + time["all_to_all_s"])
    kept = read_plan(tmp_path / "plan.json")
    assert kept.options.hardware == "h200"
    assert kept.metrics.moe_layer is not None
    assert kept.metrics.moe_layer.moe_layer_s == rows["moeplan"]["moe_layer"]["moe_layer_s"]


def test_times_are_predicted_on_what_was_kept_apart_too(
    moeplan: Moeplan, arguments: list[object], tmp_path: Path
) -> None:
    printed = moeplan(*arguments, "--holdout", 0.5).out
    assert "in microseconds on what was not planned on" in printed
    kept = read_plan(tmp_path / "plan.json").metrics
    assert kept.moe_layer is not None
    assert kept.holdout is not None
    assert kept.holdout.moe_layer is not None
    assert kept.holdout.moe_layer.basis == "tokens"
    assert kept.holdout.moe_layer.moe_layer_s != kept.moe_layer.moe_layer_s
    moeplan("report", tmp_path / "plan.json", "--out", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text().replace("\u200b", "")  # where names may break
    assert "holdout moe_layer_us" in page
    assert f"{1e6 * kept.holdout.moe_layer.moe_layer_s:.1f}" in page


def test_the_output_says_what_the_times_rest_on(moeplan: Moeplan, arguments: list[object]) -> None:
    ran = moeplan(*arguments)
    assert "predicted time of a MoE layer" in ran.out
    assert "copies per token were counted on the token trace" in ran.out
    assert "the target of 60% pays" in ran.out


def test_without_all_to_all_the_output_says_that_locality_has_no_effect(
    moeplan: Moeplan, arguments: list[object]
) -> None:
    ran = moeplan(*arguments, "--dispatch", "even", "--step-phase", "decode", "--step-tokens", 32)
    assert "without an all-to-all backend locality has no effect on time" in ran.out
    assert "decode of 32 tokens per GPU" in ran.out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("--hardware", "h300"), "b200, h100, h20, h200"),
        (("--step-tokens", 0), "a step has 0 tokens per GPU"),
    ],
)
def test_bad_values_are_refused(
    moeplan: Moeplan, arguments: list[object], change: tuple[object, ...], sentence: str, tmp_path: Path
) -> None:
    ran = moeplan(*arguments, *change)
    assert ran.code == 2
    assert sentence in ran.err
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(("left_out", "sentence"), [("--model", "--hardware needs --model"), ("--hardware", "need")])
def test_what_belongs_together_is_asked_for(
    moeplan: Moeplan, arguments: list[object], left_out: str, sentence: str
) -> None:
    at = arguments.index(left_out)
    ran = moeplan(*arguments[:at], *arguments[at + 2 :], "--step-phase", "decode")
    assert ran.code == 2
    assert ran.err.startswith("BAD_OPTION")
    assert sentence in ran.err


def test_a_model_that_does_not_say_how_large_an_expert_is(
    moeplan: Moeplan, arguments: list[object], model: Path
) -> None:
    write_json(model, {"num_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 6})
    ran = moeplan(*arguments)
    assert (ran.code, ran.err.split(":")[0]) == (2, "BAD_MODEL_CONFIG")
    assert "hidden_size" in ran.err


def test_a_model_is_known_by_its_name(moeplan: Moeplan, arguments: list[object], model: Path) -> None:
    arguments[arguments.index(model)] = "deepseek-v9"
    ran = moeplan(*arguments)
    assert ran.code == 2
    assert "deepseek-v3" in ran.err


@pytest.fixture
def judged(moeplan: Moeplan, arguments: list[object], tmp_path: Path) -> list[object]:
    """``evaluate`` of a plan whose time is known."""
    assert moeplan(*arguments).code == 0
    at = arguments.index("--model")
    return ["evaluate", tmp_path / "plan.json", arguments[1], "--gpus", GPUS, *arguments[at : at + 2]]


def test_evaluate_predicts_what_the_plan_did(moeplan: Moeplan, judged: list[object], tmp_path: Path) -> None:
    planned = read_plan(tmp_path / "plan.json").metrics.moe_layer
    assert planned is not None
    time = moeplan(*judged, "--hardware", "h200", "--json").json["metrics"]["moe_layer"]
    assert time["basis"] == "tokens"
    assert time["moe_layer_s"] == planned.moe_layer_s
    assert moeplan(*judged, "--json").json["metrics"]["moe_layer"] is None


def test_evaluate_takes_phase_and_size_of_the_step(moeplan: Moeplan, judged: list[object]) -> None:
    said = moeplan(*judged, "--hardware", "h100", "--step-phase", "decode", "--step-tokens", 64).out
    assert "predicted time of a MoE layer" in said
    assert "on h100, decode of 64 tokens per GPU" in said


def test_evaluate_expects_copies_from_counts_where_tokens_are_sampled(moeplan: Moeplan, judged: list[object]) -> None:
    ran = moeplan(*judged, "--hardware", "h200", "--sample-tokens", 500, "--json")
    assert ran.json["metrics"]["moe_layer"]["basis"] == "counts"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--step-tokens", 8), "need --hardware"),
        (("--hardware", "h300"), "b200, h100, h20, h200"),
        (("--hardware", "h200", "--step-tokens", -1), "a step has -1 tokens per GPU"),
    ],
)
def test_evaluate_refuses_bad_values(
    moeplan: Moeplan, judged: list[object], options: tuple[object, ...], sentence: str
) -> None:
    ran = moeplan(*judged, *options)
    assert ran.code == 2
    assert sentence in ran.err


def test_evaluate_needs_the_model_for_times(moeplan: Moeplan, judged: list[object]) -> None:
    ran = moeplan(*judged[:-2], "--hardware", "h200")
    assert (ran.code, ran.err.split(":")[0]) == (2, "BAD_OPTION")
    assert "--hardware needs --model" in ran.err


@pytest.fixture
def for_step_time(arguments: list[object], recording: Path) -> list[object]:
    """A plan of a shorter recording."""
    arguments[arguments.index(recording)] = recording_path(AFFINITY)
    return [*arguments, "--objective", "step-time", "--slots-per-gpu", 8]


def test_step_time_counts_copies_and_shows_the_plan_for_traffic(moeplan: Moeplan, for_step_time: list[object]) -> None:
    ran = moeplan(*for_step_time, "--json")
    rows = {**ran.json["baselines"], "moeplan": ran.json["metrics"]}
    assert {"locality", "traffic"} <= set(rows)
    times = {name: row["moe_layer"] for name, row in rows.items()}
    assert {time["basis"] for time in times.values()} == {"tokens"}
    assert times["moeplan"]["moe_layer_s"] <= min(time["moe_layer_s"] for time in times.values()) * (1 + 1e-9)
    assert 0 < ran.json["bound"]["moe_layer_s"] <= times["moeplan"]["moe_layer_s"]
    assert "recorded tokens" in ran.json["bound"]["relaxation"]["moe_layer_s"]


def test_step_time_with_a_sample_of_tokens_is_planned_and_judged_by_counts(
    moeplan: Moeplan, for_step_time: list[object]
) -> None:
    ran = moeplan(*for_step_time, "--sample-tokens", 500, "--json")
    assert ran.json["metrics"]["moe_layer"]["basis"] == "counts"
    assert "traffic" not in ran.json["baselines"]
