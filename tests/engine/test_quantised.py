"""Case U10 on a model whose experts are int8 with scales: scales move with weights, and are missed when they do not."""

from __future__ import annotations

from pathlib import Path

from tests.api.cli.command import Moeplan, write_json
from tests.case_files import case
from tests.engine.engine_server import EngineServer
from tests.engine.test_placement import pushed, random_map, read_placement, tensors_on_wrong_experts
from tests.engine.traffic import EIGHT_PROMPTS, greedy_at_once

WEIGHTS, SCALES = {"w13_weight", "w2_weight"}, {"w13_weight_scale", "w2_weight_scale"}
HIDDEN = EXPERT_WIDTH = 64


def test_scales_move_with_weights(int8_engine: EngineServer) -> None:
    before = read_placement(int8_engine)
    assert before.quantization == "w8a8_int8"
    assert before.checksums is not None
    assert set(before.checksums) == WEIGHTS | SCALES
    rows = 2 * EXPERT_WIDTH + HIDDEN
    assert before.expert_bytes == rows * HIDDEN + 4 * rows, "a byte for every weight and a float32 for every row"
    reference = greedy_at_once(int8_engine)

    pushed(int8_engine, random_map(before, seed=71))
    after = read_placement(int8_engine)
    assert tensors_on_wrong_experts(before, after) == set()
    assert greedy_at_once(int8_engine).equal_outputs(reference) == len(EIGHT_PROMPTS)
    pushed(int8_engine, before.map_LP.tolist())
    assert read_placement(int8_engine).checksums == before.checksums


def test_scales_left_behind_fail_the_verification(int8_engine: EngineServer, moeplan: Moeplan, tmp_path: Path) -> None:
    before = read_placement(int8_engine)
    reference = greedy_at_once(int8_engine)
    layout = write_json(tmp_path / "layout.json", {"physical_to_logical_map": random_map(before, seed=72)})
    with int8_engine.fault("leave_scales"):
        code = case("U10")["expect"]["error_code"]
        sentence = moeplan.refused("push", layout, "--engine", int8_engine.url, code=code)
        broken = read_placement(int8_engine)
        outputs = greedy_at_once(int8_engine)
        back = moeplan("rollback", "--engine", int8_engine.url, "--json")
    assert "_weight_scale is another one's" in sentence
    assert tensors_on_wrong_experts(before, broken) == SCALES, "weights are where the map says"
    assert outputs.equal_outputs(reference) < len(EIGHT_PROMPTS)
    assert back.code == 0, back.err
    assert read_placement(int8_engine).checksums == before.checksums
    assert greedy_at_once(int8_engine).equal_outputs(reference) == len(EIGHT_PROMPTS)
