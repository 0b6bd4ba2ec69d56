"""Traffic and models of the acceptance on more GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.checkpoints import CHECKPOINTS
from tests.gpu.grid_cases import SCALES, calibration_traffic, random_cases, random_model, trained_cases, trained_model
from tests.gpu.plans import write_trace
from tests.gpu.tables import grid_table
from tests.gpu.traffic import Routed


@pytest.mark.parametrize("gpus", [4, 8])
def test_steps_divide_the_traffic_and_gpus_the_slots(gpus: int) -> None:
    scale = SCALES[gpus]
    assert scale.requests * scale.prompt_tokens % scale.step_tokens == 0
    experts = CHECKPOINTS[scale.checkpoint].experts
    assert all((experts + more) % gpus == 0 for more in (*scale.redundant, scale.control_redundant))


def test_halves_differ_and_no_layout_is_judged_on_calibration_traffic() -> None:
    scale = SCALES[2]
    seen = [half.prompts_S for case in random_cases(scale, gpus=2) for half in (case.planned_from, case.judged_on)]
    seen += [traffic.prompts_S for traffic in calibration_traffic(scale, gpus=2)]
    assert all(one != other for index, one in enumerate(seen) for other in seen[:index])


def test_at_domain_homes_every_gpu_has_tokens_of_its_domain_alone() -> None:
    scale = SCALES[2]
    domain_homes = random_cases(scale, gpus=2)[1]
    model = CHECKPOINTS[scale.checkpoint]
    for gpu, prompts in enumerate(domain_homes.judged_on.prompts_S):
        assert {token for prompt in prompts for token in prompt} <= set(model.domain_tokens(gpu))


def test_prompts_of_a_trained_model_are_in_one_half_each(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    prompts = [{"domain": "ab"[number % 2], "input_ids": [number % 2, number]} for number in range(40)]
    file.write_text(json.dumps(prompts))
    for case in trained_cases(file, SCALES[2], gpus=2):
        halves = [
            [tuple(prompt) for prompts in half.prompts_S for prompt in prompts]
            for half in (case.planned_from, case.judged_on)
        ]
        assert len(set(halves[0]) | set(halves[1])) == len(halves[0]) + len(halves[1]) == 8
        if case.homes == "domain homes":
            assert all(prompt[0] == gpu for gpu, all_ in enumerate(case.judged_on.prompts_S) for prompt in all_)


def test_models_say_their_sizes(tmp_path: Path) -> None:
    model = random_model("four-domains", tmp_path)
    assert (model.layers, model.experts, model.top_k, model.expert.weight_bytes) == (4, 64, 8, 3 * 2048 * 1408 * 2)
    (tmp_path / "config.json").write_text(json.dumps(CHECKPOINTS["small-hot"].config()))
    assert trained_model(tmp_path).experts == 16


def test_a_trace_holds_steps_and_homes(tmp_path: Path) -> None:
    routed = Routed(np.arange(24, dtype=np.int32).reshape(4, 2, 3) % 8, np.array([0, 0, 1, 1]))
    with np.load(write_trace(tmp_path / "trace.npz", routed, experts=8, tokens_per_step=1)) as trace:
        assert trace["topk"].shape == (2, 4, 3)
        assert trace["step"].tolist() == [0, 1, 0, 1]
        assert trace["req_source"][trace["request_id"]].tolist() == [0, 0, 1, 1]


def test_the_table_says_what_is_faster_and_by_which_part() -> None:
    where = {"engine": "slots-80", "case": "random homes"}

    def step(layout: str, measured_ms: float, predicted_ms: float) -> dict[str, object]:
        return {
            "kind": "layout step",
            **where,
            "layout": layout,
            "steps": 32,
            "measured_ms": measured_ms,
            "quarters_ms": [measured_ms - 0.5, measured_ms + 0.5],
            "predicted_ms": predicted_ms,
            "relative_error": measured_ms / predicted_ms - 1,
            "predicted_from_counts_ms": predicted_ms,
            "moe_ms": {"predicted": 20.0, "measured": 20.0},
            "experts_ms": {"predicted": 9.0, "measured": 9.5},
        }

    times = [
        {"kind": "layout times", **where, "layout": name, "round": 0, "steps": 16, "step_ms": ms}
        for name, ms in (("initial", 30.0), ("eplb", 28.5), ("moeplan traffic", 27.0))
    ]
    steps = [step("initial", 30.0, 30.0), step("eplb", 27.5, 27.0), step("moeplan traffic", 27.0, 30.0)]
    table = grid_table([*times, *steps], gpus=4)
    assert "moeplan traffic against initial: 27.0 against 30.0 ms a step (+10.0 % faster; quartiles apart)" in table
    assert "moeplan traffic against eplb: 27.0 against 27.5 ms a step (+1.8 % faster; quartiles overlap)" in table
    assert "Largest relative error of predicted step time: 10.0 %" in table
