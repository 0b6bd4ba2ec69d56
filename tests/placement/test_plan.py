"""The plan: what it holds, what it derives, and which contradictions it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from placement.dispatch import Dispatch
from placement.errors import BadPlan
from placement.notice import Notice
from placement.plan import Plan
from placement.plan_header import PlanInput
from placement.plan_metrics import Moves
from placement.problem import LocalScope, Objective
from placement.solution import Bound
from placement.topology import Topology
from tests.sample_plans import make_plan, skewed_demand, small_sample


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(small_sample())


def test_summary_has_the_keys_of_the_contract(plan: Plan) -> None:
    summary = plan.summary()
    assert {
        "status",
        "slots_per_gpu",
        "metrics",
        "bound",
        "gap",
        "baselines",
        "moves",
        "solve_seconds",
        "sources",
        "warnings",
    } <= set(summary)
    assert set(summary["baselines"]) == {"trivial", "random", "eplb", "hot_replication"}
    for metrics in (summary["metrics"], *summary["baselines"].values()):
        assert {"local_gpu", "local_node", "imbalance", "balancedness", "sglang_balancedness", "moved_slots"} <= set(
            metrics
        )
        assert {"overflow_share", "rerouted", "dropped", "worst_window"} <= set(metrics)
    assert summary["bound"]["proven"] is True
    json.dumps(summary, allow_nan=False)


def test_the_same_input_gives_the_same_plan_whatever_the_time_it_took(plan: Plan) -> None:
    again = replace(make_plan(small_sample()), solve_seconds=99.0)
    assert again == plan
    assert json.dumps(again.to_dict()) == json.dumps(plan.to_dict())
    assert "solve_seconds" not in plan.to_dict()
    assert again.summary()["solve_seconds"] == 99.0


def test_plans_that_differ_are_not_equal(plan: Plan) -> None:
    warned = replace(plan, notices=(Notice("PARTIAL", "half of the ranks"),))
    assert warned != plan
    assert plan != "a plan"
    assert hash(warned) == hash(plan)  # equal layouts may share a hash, unequal plans must not be mixed up by it
    assert {plan: 1, warned: 2}[plan] == 1


def test_arrays_are_whole_read_only_tokens(plan: Plan) -> None:
    parts_G = np.array([0.25, -0.25, 0.4, -0.4])
    moe_L1 = plan.heat_LE.any(axis=1, keepdims=True)
    parts_G = np.array([0.25, -0.25, 0.4, -0.4])
    moe_L1 = plan.heat_LE.any(axis=1, keepdims=True)
    halves = replace(plan, load_after_LG=plan.load_after_LG + parts_G * moe_L1)
    assert halves.load_after_LG.dtype == np.int64
    assert np.array_equal(halves.load_after_LG, plan.load_after_LG)
    with pytest.raises(ValueError, match="read-only"):
        plan.heat_LE[0, 0] = 1


def test_gap_is_that_of_the_objective(plan: Plan) -> None:
    assert plan.local is not None
    assert plan.local_bound is not None
    assert plan.gap == pytest.approx(1 - plan.local / plan.local_bound)
    balance = replace(plan, options=replace(plan.options, objective=Objective.BALANCE))
    assert balance.gap == pytest.approx(plan.metrics.worst_window.imbalance / 1.0 - 1)


def test_gap_is_absent_without_a_bound(plan: Plan) -> None:
    unproven = replace(plan, bound=Bound(None, None, None, {}))
    assert unproven.gap is None
    assert unproven.summary()["bound"]["proven"] is False
    balance = replace(unproven, options=replace(plan.options, objective=Objective.BALANCE))
    assert balance.gap is None


def test_gap_is_absent_where_locality_is_undefined() -> None:
    even = make_plan(replace(small_sample(), dispatch=Dispatch.EVEN, objective=Objective.LOCALITY))
    assert even.local is None
    assert even.gap is None


def test_node_scope_reads_the_share_of_the_node() -> None:
    sample = replace(small_sample(), topology=Topology(4, 2), local_scope=LocalScope.NODE)
    plan = make_plan(sample)
    assert plan.local == plan.metrics.local_node
    assert plan.local_bound == 1.0


def test_holdout_is_kept_beside_the_planned_windows() -> None:
    demand = skewed_demand(windows=3)
    sample = replace(small_sample(), demand=demand.pick_windows([0, 1]), holdout=demand.pick_windows([2]))
    plan = make_plan(sample)
    assert plan.window_names == ("window 0", "window 1")
    assert plan.metrics.holdout is not None
    assert [window.name for window in plan.metrics.holdout.windows] == ["window 2"]
    assert plan.summary()["metrics"]["holdout"]["imbalance"] == plan.metrics.holdout.imbalance


def _edited(table: np.ndarray, value: float) -> np.ndarray:
    changed = np.array(table, dtype=np.float64)
    changed[1, 0] = value
    return changed


CONTRADICTIONS = {
    "layout of other GPUs": (lambda plan: {"topology": Topology(2)}, "GPUs"),
    "heat of other experts": (lambda plan: {"heat_LE": plan.heat_LE[:, :-1]}, "heat_LE has shape"),
    "heat of other traffic": (lambda plan: {"heat_LE": plan.heat_LE * 2}, "layer 1 adds up|adds up to"),
    "heat of no traffic": (lambda plan: {"heat_LE": plan.heat_LE * 0}, r"layers \[\] have traffic"),
    "traffic in a dense layer": (
        lambda plan: {"model": replace(plan.model, moe_layers=(2, 3, 4, 5))},
        r"layers \[1, 2, 3, 4, 5\] have traffic",
    ),
    "load of other layers": (lambda plan: {"load_before_LG": plan.load_before_LG[:-1]}, "load_before_LG has shape"),
    "load that loses tokens": (
        lambda plan: {"load_after_LG": _edited(plan.load_after_LG, 0)},
        "load_after_LG, layer 1 adds up",
    ),
    "negative load": (lambda plan: {"load_after_LG": _edited(plan.load_after_LG, -1)}, "no count of tokens"),
    "NaN load": (lambda plan: {"load_after_LG": _edited(plan.load_after_LG, np.nan)}, "no count of tokens"),
    "heat that is no table": (lambda plan: {"heat_LE": plan.heat_LE[0]}, "must be a table"),
    "moves of other layers": (
        lambda plan: {"moves": replace(plan.moves, by_layer=(*plan.moves.by_layer, 0))},
        "moves.by_layer has 7",
    ),
    "moves of other GPUs": (
        lambda plan: {"moves": replace(plan.moves, received_by_gpu=(*plan.moves.received_by_gpu, 0))},
        "moves.received_by_gpu has 5",
    ),
    "moved slots of two kinds": (
        lambda plan: {"metrics": replace(plan.metrics, moved_slots=plan.metrics.moved_slots + 1)},
        "moved slots",
    ),
    "MoE layer that is not there": (lambda plan: {"model": replace(plan.model, moe_layers=(1, 6))}, "moe_layers"),
    "MoE layers out of order": (lambda plan: {"model": replace(plan.model, moe_layers=(2, 1))}, "moe_layers"),
    "share above 1": (lambda plan: {"metrics": replace(plan.metrics, dropped=1.5)}, "dropped is 1.5"),
    "imbalance below 1": (lambda plan: {"metrics": replace(plan.metrics, imbalance=0.9)}, "imbalance is 0.9"),
    "bound of no relaxation": (
        lambda plan: {"bound": replace(plan.bound, relaxation={"local_gpu": "flow", "imbalance": "mean"})},
        "relaxations of",
    ),
    "bound on the share that is passed": (
        lambda plan: {"bound": replace(plan.bound, local_gpu=plan.metrics.local_gpu - 0.01)},
        "above its proven bound",
    ),
    "bound on the imbalance that is passed": (
        lambda plan: {"bound": replace(plan.bound, imbalance=plan.metrics.worst_window.imbalance + 0.01)},
        "below its proven bound",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_refused(plan: Plan, name: str) -> None:
    change, message = CONTRADICTIONS[name]
    with pytest.raises(BadPlan, match=message):
        replace(plan, **change(plan))


def test_figures_of_baselines_are_checked_too(plan: Plan) -> None:
    wrong = replace(plan.baselines["eplb"], local_gpu=1.2)
    with pytest.raises(BadPlan, match=r"eplb: local_gpu is 1\.2"):
        replace(plan, baselines={**plan.baselines, "eplb": wrong})


def test_rounding_within_half_a_token_per_gpu_is_no_contradiction(plan: Plan) -> None:
    rounded = np.array(plan.load_after_LG)
    rounded[1, 0] += plan.heat_LE[1].sum() + 2 - rounded[1].sum()  # what rounding four expected loads can add
    assert replace(plan, load_after_LG=rounded).load_after_LG[1].sum() == plan.heat_LE[1].sum() + 2
    rounded[1, 0] += 1
    with pytest.raises(BadPlan, match="layer 1 adds up"):
        replace(plan, load_after_LG=rounded)


@pytest.mark.parametrize("changes", [{"by_layer": (1, 1)}, {"received_by_gpu": (3, -1)}])
def test_moves_must_add_up(changes: dict[str, tuple[int, ...]]) -> None:
    good = Moves("trivial", 2, None, (2, 0), (1, 1))
    assert replace(good, by_layer=(0, 2)).by_layer == (0, 2)
    with pytest.raises(BadPlan, match="moves"):
        replace(Moves("trivial", 3, None, (3, 0), (1, 2)), **changes)


def test_moves_take_numpy_counts() -> None:
    moves = Moves("current", 2, 2048, tuple(np.array([2, 0])), tuple(np.array([1, 1])))
    assert json.dumps(moves.by_layer) == "[2, 0]"


@pytest.mark.parametrize("sha256", ["", "ab", "AB" * 32, "zz" * 32, "ab" * 32 + "\n"])
def test_input_hashes_are_sha256(sha256: str) -> None:
    with pytest.raises(BadPlan, match="64 hex digits"):
        PlanInput("trace.npz", sha256)
