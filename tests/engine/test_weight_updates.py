"""Case U18: weights that are loaded after a push reach every slot, and checksums from before are known to be void."""

from __future__ import annotations

from pathlib import Path

from profiler.engine.contract import Placement
from profiler.engine.verify import expert_weights
from tests.engine.engine_server import EngineServer
from tests.engine.test_placement import pushed, read_placement, tensors_on_wrong_experts
from tests.engine.traffic import EIGHT_PROMPTS, greedy_at_once


def load_weights(engine: EngineServer, checkpoint: Path) -> None:
    answer = engine.post("/update_weights_from_disk", {"model_path": str(checkpoint)})
    assert answer.status_code == 200, answer.text
    assert answer.json()["success"], answer.text


def with_doubled_experts(placement: Placement) -> list[list[int]]:
    """Return a layout with an expert twice on one rank and once on the other, in every layer."""
    extra = placement.slots - placement.experts
    half = placement.slots // placement.ep_size
    rest = [expert for expert in range(placement.experts) if expert not in (3, 5)]
    row = [3, 3, 5, *rest[: half - 3], *rest[half - 3 :], 3, 5]
    row += [7] * (placement.slots - len(row))
    assert extra >= 3
    return [row for _ in range(placement.layers)]


def test_new_weights_reach_every_slot(engine: EngineServer, random_model: Path, other_weights: Path) -> None:
    before = read_placement(engine)
    reference = greedy_at_once(engine)
    pushed(engine, with_doubled_experts(before))
    moved = read_placement(engine)
    load_weights(engine, other_weights)
    other = read_placement(engine)
    outputs = greedy_at_once(engine)
    load_weights(engine, random_model)
    again = read_placement(engine)

    assert other.weight_updates == moved.weight_updates + 1 == before.weight_updates + 1
    assert (other.layout_hash, other.generation) == (moved.layout_hash, moved.generation)
    assert tensors_on_wrong_experts(before, other) == {"w13_weight", "w2_weight"}, "all weights are new"
    assert expert_weights(other), "all slots of an expert hold the same"
    assert outputs.equal_outputs(reference) < len(EIGHT_PROMPTS)
    assert again.checksums == moved.checksums
    assert greedy_at_once(engine).equal_outputs(reference) == len(EIGHT_PROMPTS)
    pushed(engine, before.map_LP.tolist())
    assert read_placement(engine).checksums == before.checksums
