"""Health, placement and push on a live engine: what moved is right, what is wrong is refused or found."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import httpx
import numpy as np
import pytest

from profiler.engine.contract import Placement, PluginHealth, Refusal
from profiler.engine.contract_push import MAX_PAUSE_S, PushAnswer
from tests.engine.engine_server import EngineServer
from tests.engine.traffic import EIGHT_PROMPTS, generate, greedy_at_once, greedy_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read_placement(engine: EngineServer, *, checksums: int = 1) -> Placement:
    response = engine.get("/moeplan/placement", checksums=checksums)
    assert response.status_code == 200, response.text
    return Placement.from_json(response.json())


def random_map(placement: Placement, *, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    layers = []
    for _ in range(placement.layers):
        extra = [draw.randrange(placement.experts) for _ in range(placement.slots - placement.experts)]
        row = [*range(placement.experts), *extra]
        draw.shuffle(row)
        layers.append(row)
    return layers


def push(engine: EngineServer, layout: list[list[int]], **options: Any) -> httpx.Response:
    return engine.put("/moeplan/placement", {"physical_to_logical_map": layout, **options})


def pushed(engine: EngineServer, layout: list[list[int]], **options: Any) -> PushAnswer:
    response = push(engine, layout, **options)
    assert response.status_code == 200, response.text
    return PushAnswer.from_json(response.json())


def refused(response: httpx.Response, *, status: int) -> str:
    assert response.status_code == status, response.text
    return Refusal.from_json(response.json()).code


def tensors_on_wrong_experts(before: Placement, after: Placement) -> set[str]:
    """Return the tensors of which some slot does not hold what its expert had before."""
    assert before.checksums is not None
    assert after.checksums is not None
    assert before.checksums.keys() == after.checksums.keys()
    wrong = set()
    for tensor, rows in before.checksums.items():
        for layer in before.moe_layers:
            of_expert = dict(zip(before.map_LP[layer].tolist(), rows[layer], strict=True))
            found = zip(after.map_LP[layer].tolist(), after.checksums[tensor][layer], strict=True)
            if any(of_expert[expert] != text for expert, text in found):
                wrong.add(tensor)
    return wrong


def test_health_says_that_everything_works(engine: EngineServer) -> None:
    health = PluginHealth.from_json(engine.get("/moeplan/health").json())
    assert health.engine_version == engine.version
    assert health.ranks == (0, 1)
    assert {name: ability.reason for name, ability in health.abilities.items() if not ability.works} == {}


def test_placement_describes_the_engine(engine: EngineServer) -> None:
    placement = read_placement(engine)
    assert (placement.layers, placement.experts, placement.slots, placement.top_k) == (3, 16, 24, 4)
    assert (placement.ep_size, placement.dispatch, placement.a2a_backend) == (2, "dynamic", "none")
    assert placement.ranks_agree
    assert placement.expert_bytes == 3 * 64 * 64 * 4
    assert placement.checksums is not None
    assert set(placement.checksums) == {"w13_weight", "w2_weight"}
    replicas = placement.checksums["w2_weight"][1]
    assert replicas[0] == replicas[16], "two replicas of expert 0 hold the same bytes"
    assert len(set(replicas)) == 16


def test_push_moves_weights_and_keeps_outputs(engine: EngineServer) -> None:
    before = read_placement(engine)
    reference = greedy_run(engine)
    assert greedy_run(engine) == reference, "the engine repeats itself without a push"
    layout = random_map(before, seed=3)

    answer = pushed(engine, layout, expected_layout_hash=before.layout_hash)
    after = read_placement(engine)

    assert answer.status == "applied"
    assert answer.layout_hash == after.layout_hash != before.layout_hash
    assert after.map_LP.tolist() == layout
    assert after.ranks_agree
    assert after.generation == before.generation + 1
    assert sum(chunk.changed_slots for chunk in answer.chunks) == int((before.map_LP != after.map_LP).sum())
    assert tensors_on_wrong_experts(before, after) == set()
    moved = greedy_run(engine)
    assert moved.equal_outputs(reference) == len(EIGHT_PROMPTS)
    assert moved.largest_logprob_difference(reference) < 1e-3

    pushed(engine, before.map_LP.tolist())
    restored = read_placement(engine)
    assert restored.layout_hash == before.layout_hash
    assert restored.checksums == before.checksums
    assert greedy_run(engine) == reference, "pushing the old layout back restores every bit"


@pytest.mark.parametrize(
    ("fault", "expected"), [("map_only", {"w13_weight", "w2_weight"}), ("leave_last_tensor", {"w2_weight"})]
)
def test_verification_fails_when_weights_stay_behind(engine: EngineServer, fault: str, expected: set[str]) -> None:
    before = read_placement(engine)
    reference = greedy_at_once(engine)
    with engine.fault(fault):
        answer = pushed(engine, random_map(before, seed=4))
        broken = read_placement(engine)
        outputs = greedy_at_once(engine)
        pushed(engine, before.map_LP.tolist())
    assert answer.status == "applied", "the engine itself notices nothing"
    assert broken.map_LP.tolist() == random_map(before, seed=4)
    assert tensors_on_wrong_experts(before, broken) == expected
    assert outputs.equal_outputs(reference) < len(EIGHT_PROMPTS)
    assert read_placement(engine).checksums == before.checksums


def test_dry_run_moves_nothing(engine: EngineServer) -> None:
    before = read_placement(engine)
    answer = pushed(engine, random_map(before, seed=5), dry_run=True, layers_per_chunk=2)
    assert answer.status == "dry_run"
    assert [chunk.status for chunk in answer.chunks] == ["planned", "planned"]
    assert [chunk.layers for chunk in answer.chunks] == [(0, 1), (2,)]
    after = read_placement(engine)
    assert (after.layout_hash, after.generation, after.checksums) == (
        before.layout_hash,
        before.generation,
        before.checksums,
    )


def test_pushing_the_running_layout_changes_nothing(engine: EngineServer) -> None:
    before = read_placement(engine, checksums=0)
    answer = pushed(engine, before.map_LP.tolist())
    assert (answer.status, answer.chunks, answer.generation) == ("applied", (), before.generation)


def test_single_layer_push_keeps_the_others(engine: EngineServer) -> None:
    before = read_placement(engine)
    answer = pushed(engine, random_map(before, seed=6), layers=[1])
    after = read_placement(engine)
    assert answer.new_layers == (1,)
    assert np.array_equal(after.map_LP[[0, 2]], before.map_LP[[0, 2]])
    assert after.map_LP[1].tolist() == random_map(before, seed=6)[1]
    assert tensors_on_wrong_experts(before, after) == set()
    pushed(engine, before.map_LP.tolist())


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda rows: rows[:-1], "LAYOUT_MISMATCH"),
        (lambda rows: [row[:-2] for row in rows], "SLOT_COUNT_MISMATCH"),
        (lambda rows: [[-1, *row[1:]] for row in rows], "EXPERT_ID_RANGE"),
        (lambda rows: [[16, *row[1:]] for row in rows], "EXPERT_ID_RANGE"),
        (lambda rows: [[0] * len(row) for row in rows], "EXPERT_MISSING"),
        (lambda rows: [[0.5, *row[1:]] for row in rows], "BAD_MAP_SHAPE"),
        (lambda rows: rows[0], "BAD_MAP_SHAPE"),
    ],
)
def test_bad_map_is_refused(engine: EngineServer, damage: Any, code: str) -> None:
    before = read_placement(engine, checksums=0)
    assert refused(push(engine, damage(before.map_LP.tolist())), status=400) == code
    assert read_placement(engine, checksums=0).layout_hash == before.layout_hash


def test_body_that_is_no_json_is_refused(engine: EngineServer) -> None:
    response = engine.client.put("/moeplan/placement", content=b"{")
    assert refused(response, status=400) == "BAD_JSON"


def test_unexpected_layout_is_refused(engine: EngineServer) -> None:
    before = read_placement(engine, checksums=0)
    response = push(engine, random_map(before, seed=8), expected_layout_hash="0" * 64)
    assert refused(response, status=409) == "LAYOUT_HASH_MISMATCH"
    assert read_placement(engine, checksums=0).layout_hash == before.layout_hash


def test_one_of_two_pushers_wins_and_requests_run_between_chunks(engine: EngineServer) -> None:
    started_s = time.monotonic()
    before = read_placement(engine)
    generate(engine, EIGHT_PROMPTS[0])
    # What is asked below during the first pause, on a machine that does other things too.
    pause_s = min(MAX_PAUSE_S, max(3.0, 4 * (time.monotonic() - started_s)))
    answers: list[PushAnswer] = []
    first = threading.Thread(
        target=lambda: answers.append(pushed(engine, random_map(before, seed=9), layers_per_chunk=1, pause_s=pause_s))
    )
    first.start()
    while not read_placement(engine, checksums=0).push_in_progress:
        time.sleep(0.02)
    assert refused(push(engine, random_map(before, seed=10)), status=409) == "PUSH_IN_PROGRESS"
    assert refused(engine.get("/moeplan/placement", checksums=1), status=409) == "PUSH_IN_PROGRESS"
    generate(engine, EIGHT_PROMPTS[0])
    served_during_push = read_placement(engine, checksums=0).push_in_progress
    first.join()

    assert served_during_push, "a request was answered while the push paused"
    (answer,) = answers
    assert [chunk.layers for chunk in answer.chunks] == [(0,), (1,), (2,)]
    assert {chunk.status for chunk in answer.chunks} == {"applied"}
    after = read_placement(engine)
    assert not after.push_in_progress
    assert after.generation == before.generation + 1
    assert tensors_on_wrong_experts(before, after) == set()
    pushed(engine, before.map_LP.tolist())


def test_failed_chunk_leaves_whole_layers_and_can_be_taken_back(engine: EngineServer) -> None:
    before = read_placement(engine)
    reference = greedy_at_once(engine)
    layout = random_map(before, seed=11)
    with engine.fault("fail_at:2"):
        response = push(engine, layout, layers_per_chunk=1)
    assert response.status_code == 500
    answer = PushAnswer.from_json(response.json())
    assert answer.status == "partial"
    assert "layer 2" in answer.error
    assert (answer.new_layers, answer.old_layers) == ((0, 1), (2,))
    assert [chunk.status for chunk in answer.chunks] == ["applied", "applied", "failed"]
    partial = read_placement(engine)
    assert partial.map_LP.tolist() == [layout[0], layout[1], before.map_LP[2].tolist()]
    assert tensors_on_wrong_experts(before, partial) == set()
    assert greedy_at_once(engine).equal_outputs(reference) == len(EIGHT_PROMPTS)
    pushed(engine, before.map_LP.tolist())
    assert read_placement(engine).checksums == before.checksums
