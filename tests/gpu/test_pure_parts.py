"""What of the acceptance on GPUs needs no engine."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from tests.gpu.checkpoints import CHECKPOINTS
from tests.gpu.intervals import median_interval
from tests.gpu.layouts import copies_per_token, domain_layout, predicted, worst
from tests.gpu.machine import cpu_machine
from tests.gpu.measure import difference, dispatched, step_times
from tests.gpu.recording_cost import token_rate
from tests.gpu.results import Results, read_results, run_stages
from tests.gpu.scale import CPU_SCALE
from tests.gpu.server import EnginePool
from tests.gpu.streams import largest_gap_s, quiet_gaps_s
from tests.gpu.tables import two_gpu_table
from tests.gpu.traffic import Routed, domain_traffic
from tests.gpu.two_gpus import STAGES, TwoGpus


def test_a_median_interval_is_the_narrowest_that_covers_95_percent() -> None:
    interval = median_interval(range(1, 16))
    assert (interval.median, interval.low, interval.high) == (8, 4, 12)  # P(at most 3 of 15 below) = 0.0176


def test_too_few_values_give_their_extremes() -> None:
    interval = median_interval([3.0, 1.0, 2.0])
    assert (interval.low, interval.high) == (1.0, 3.0)
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_an_interval_holds_its_median(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval.low <= interval.median <= interval.high


ARRIVALS = [[0.0, 0.1, 0.2, 0.9, 1.0], [0.05, 0.15, 1.05]]


def test_the_largest_gap_is_of_one_request_and_touches_the_interval() -> None:
    assert largest_gap_s(ARRIVALS, 0.02, 0.08) == pytest.approx(0.1)
    assert largest_gap_s(ARRIVALS, 0.3, 0.4) == pytest.approx(0.9)
    assert largest_gap_s(ARRIVALS, 2.0, 3.0) == 0.0


def test_quiet_intervals_keep_away_from_busy_ones() -> None:
    steady = [[index / 128 for index in range(1281)]]
    gaps = quiet_gaps_s(steady, [(2.0, 8.0)], length_s=0.25, margin_s=0.5)
    assert gaps == [1 / 128] * 8  # from 0.5 to 1.5 and from 8.5 to 9.5


def test_a_rate_counts_the_tokens_within_its_interval_only() -> None:
    assert token_rate([0.0, 0.5, 0.9, 1.5, 2.0], (0.5, 2.0)) == pytest.approx(3 / 1.5)
    assert token_rate([0.0, 3.0], (1.0, 2.0)) == 0.0


def _routed(*, tokens: int, seed: int) -> Routed:
    draw = np.random.default_rng(seed)
    experts_TLK = np.array(
        [[draw.choice(8, 3, replace=False) for _ in range(2)] for _ in range(tokens)], dtype=np.int32
    )
    return Routed(experts_TLK, draw.integers(0, 2, tokens))


def _demand(routed: Routed) -> Demand:
    tokens = np.zeros((1, 2, 2, 8), dtype=np.int64)
    for experts_LK, source in zip(routed.experts_TLK, routed.source_T, strict=True):
        for layer in range(2):
            tokens[0, layer, source, experts_LK[layer]] += 1
    return Demand(tokens, "measured", ("all",))


def _probe_answer(layout: Layout, routed: Routed) -> list[dict]:
    """What the probe counts when every expert has one slot."""
    ranks = []
    for gpu in range(2):
        layers = []
        for layer in range(2):
            slot_of_expert = np.argsort(layout.slot_to_expert_LP[layer])
            mine = routed.experts_TLK[routed.source_T == gpu, layer]
            slot_TK = slot_of_expert[mine]
            gpu_TK = slot_TK // layout.slots_per_gpu
            layers.append(
                {
                    "slots": np.bincount(slot_TK.ravel(), minlength=layout.slots).tolist(),
                    "tokens": len(mine),
                    "own_pairs": int((gpu_TK == gpu).sum()),
                    "copies": int((gpu_TK != gpu).any(axis=1).sum()),
                }
            )
        ranks.append({"rank": gpu, "layers": layers})
    return ranks


@pytest.mark.parametrize("seed", range(3))
def test_counted_and_predicted_figures_are_the_same_thing(seed: int) -> None:
    routed = _routed(tokens=60, seed=seed)
    row = list(range(8))
    random.Random(seed).shuffle(row)
    layout = Layout(np.array([row, row[::-1]]), gpus=2, experts=8)
    counted = dispatched(_probe_answer(layout, routed)[::-1], all_to_all=True)
    demand = _demand(routed)
    imbalance, local_gpu = predicted(layout, demand, gpus=2, dispatch=Dispatch.NEAREST_DYNAMIC)
    assert counted.imbalance == pytest.approx(imbalance)
    assert counted.local_gpu == pytest.approx(local_gpu)
    copies = copies_per_token(layout, routed, dispatch=Dispatch.NEAREST_DYNAMIC)
    assert counted.copies_per_token == pytest.approx(copies)
    assert difference(demand, routed)["pairs_apart"] == 0


def test_recorded_demand_that_differs_is_told_apart() -> None:
    routed = _routed(tokens=10, seed=0)
    tokens = _demand(routed).tokens_WLSE.copy()
    full = np.argwhere(tokens[0] > 0)[0]
    tokens[0][tuple(full)] -= 1
    tokens[0, 1, 1, 7] += 1
    assert difference(Demand(tokens, "measured", ("all",)), routed)["pairs_apart"] == 1


def test_without_an_all_to_all_each_gpu_computes_its_own_slots_of_all_tokens() -> None:
    layer = {"slots": [4, 2, 1, 1], "tokens": 4, "own_pairs": 0, "copies": 0}
    counted = dispatched([{"rank": rank, "layers": [layer]} for rank in (0, 1)], all_to_all=False)
    assert counted.imbalance == pytest.approx(6 / 4)
    assert counted.local_gpu is None
    assert counted.tokens == 4


def test_without_an_all_to_all_a_gpu_that_missed_a_step_does_not_count() -> None:
    whole = {"slots": [4, 2, 3, 3], "tokens": 6, "own_pairs": 0, "copies": 0}
    missed = {"slots": [1, 2, 0, 1], "tokens": 2, "own_pairs": 0, "copies": 0}
    counted = dispatched([{"rank": 0, "layers": [missed]}, {"rank": 1, "layers": [whole]}], all_to_all=False)
    assert (counted.imbalance, counted.tokens) == (1.0, 6)


def _step(phase: str, tokens: int, step_ms: float) -> dict:
    parts = {"dispatch_ms": [1.0, 2.0], "experts_ms": [step_ms, 0.0], "combine_ms": [0.5]}
    return {"phase": phase, "tokens": tokens, "step_ms": step_ms, **parts}


def test_only_full_steps_of_all_gpus_are_timed() -> None:
    one = [_step("prefill", 64, 5.0), _step("prefill", 64, 7.0), _step("decode", 2, 1.0), _step("prefill", 10, 1.0)]
    two = [_step("prefill", 64, 6.0), _step("prefill", 64, 4.0), _step("decode", 2, 1.0), _step("prefill", 64, 9.0)]
    times = step_times([{"steps": one}, {"steps": two}], phase="prefill")
    assert times.step_ms == [6.0, 7.0]
    parts = {"dispatch_ms": 3.0, "experts_ms": 6.5, "combine_ms": 0.5}
    # Inside MoE layers: dispatch and combine 3.5, experts 5.5 on average of both GPUs, in both steps.
    assert times.medians() == {"step_ms": 6.5, **parts, "moe_ms": 9.0, "slowest_experts_ms": 6.5}


@pytest.mark.parametrize(("gpus", "kept"), [(2, 0), (2, 8), (2, 16), (4, 0), (4, 4), (4, 5), (4, 7), (8, 4)])
def test_domain_layouts_hold_every_expert_and_none_twice(gpus: int, kept: int) -> None:
    experts = 64 if gpus > 2 else 32
    slots = experts + 2 * gpus
    layout = domain_layout(kept, layers=2, experts=experts, gpus=gpus, slots=slots)
    assert (layout.layers, layout.slots, layout.duplicated_slots()) == (2, slots, 0)
    for gpu in range(gpus):
        own = layout.replicas_LEG[0, gpu::gpus, gpu].sum()
        assert own == min(experts // gpus, kept + 2)


def test_the_worst_layout_holds_the_hottest_experts_on_one_gpu() -> None:
    demand = Demand.uniform(np.array([[1, 9, 2, 8]]))
    layout = worst(demand, gpus=2, slots=6)
    assert layout.slot_to_expert_LP.tolist() == [[1, 3, 2, 0, 0, 0]]


def test_domain_traffic_comes_mostly_from_the_home_domain() -> None:
    model = CHECKPOINTS["small-two-domains"]
    sizes = {"sources": 2, "requests": 40, "prompt_tokens": 5, "new_tokens": 1, "seed": 1}
    only = domain_traffic(model, at_home=1.0, **sizes)
    assert all(token in model.domain_tokens(0) for prompt in only.prompts_S[0] for token in prompt)
    mixed = domain_traffic(model, at_home=0.0, **sizes)
    away = sum(prompt[0] in model.domain_tokens(1) for prompt in mixed.prompts_S[0])
    assert 10 <= away <= 30


def test_a_failed_stage_ends_nothing_else_and_every_finding_is_on_disk(tmp_path: Path) -> None:
    results = Results(tmp_path, budget_s=60.0)

    def fails() -> None:
        results.add("push", how="one go", gap_ms=3.0)
        raise RuntimeError("no such engine")

    stages = [("one", fails), ("two", lambda: results.add("link")), ("three", fails)]
    run_stages(stages, results, wanted=["one", "two"], table=two_gpu_table)
    kinds = [(finding["kind"], finding.get("status")) for finding in read_results(tmp_path / "results.jsonl")]
    assert kinds == [("push", None), ("stage", "failed"), ("link", None), ("stage", "done")]
    assert "Stage one failed: no such engine" in (tmp_path / "table.md").read_text()


def test_stages_beyond_the_budget_are_skipped_and_named(tmp_path: Path) -> None:
    results = Results(tmp_path, budget_s=-1.0)
    run_stages([("one", lambda: None)], results, wanted=["one"], table=two_gpu_table)
    assert results.of("stage")[0]["status"] == "skipped"
    assert "Stage one skipped" in two_gpu_table(results.found)


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps({"kind": "link"}) + '\n{"kind": "pu')
    assert read_results(file) == [{"kind": "link"}]


def test_every_stage_can_be_asked_for(tmp_path: Path) -> None:
    machine = cpu_machine(tmp_path, tmp_path)
    with EnginePool(machine, tmp_path) as pool:
        run = TwoGpus(machine, CPU_SCALE, Results(tmp_path, 1.0), pool, model=None, extra=[])
        assert tuple(name for name, _stage in run.stages(STAGES)) == STAGES
