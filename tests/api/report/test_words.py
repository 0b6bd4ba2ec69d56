"""Sentences and numbers of the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api.report import facts
from api.report.numbers import NARROW_SPACE, byte_size, count, percent, points, ranges, ratio, times
from api.report.verdict import key_figures, verdict
from placement.dispatch import Dispatch
from placement.plan import Plan
from placement.plan_metrics import PlanMetrics
from placement.problem import LocalScope, Objective
from placement.solution import Bound, Status
from placement.topology import Topology
from tests.sample_plans import make_plan, skewed_demand, small_sample

NONE = Bound(None, None, None, {})


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(small_sample())


def _with_share(plan: Plan, share: float, *, bound: float | None) -> Plan:
    metrics = replace(plan.metrics, local_gpu=share)
    proven = NONE if bound is None else Bound(bound, None, None, {"local_gpu": "replica counts"})
    return replace(plan, metrics=metrics, bound=proven)


def _sentences(plan: Plan) -> str:
    found = verdict(plan)
    return " ".join((found.headline, *found.details, found.basis)).replace(NARROW_SPACE, " ")


@pytest.mark.parametrize(
    ("share", "bound", "expected"),
    [
        (0.6, 0.7, "60.0 % of routed tokens stay on their home GPU: the target of 60 % is reached."),
        (0.664, None, "66.4 % of routed tokens stay on their home GPU: the target of 60 % is reached."),
        (0.536, 0.7, "53.6 % of routed tokens stay on their home GPU: 6.4 points short of the target of 60 %."),
        (0.5999, 0.7, "less than 0.1 points short of the target"),
        (
            0.536,
            0.541,
            "No layout of 12 slots per GPU can pass 54.1 % (proven; relaxation: replica counts): the target needs more",
        ),
        (0.63, 0.7, "can pass 70.0 % (proven; relaxation: replica counts); this plan is within 10.00 % of it."),
        (0.63, None, "How far from the best possible share this is, is not known."),
    ],
)
def test_the_target_and_the_proof(plan: Plan, share: float, bound: float | None, expected: str) -> None:
    assert expected in _sentences(_with_share(plan, share, bound=bound))


def test_a_proven_optimum_is_called_one(plan: Plan) -> None:
    best = replace(_with_share(plan, 0.7, bound=0.7), status=Status.OPTIMAL)
    assert "can pass 70.0 % (proven; relaxation: replica counts): this plan is optimal." in _sentences(best)


def test_a_share_that_rounds_to_the_target_is_not_called_reached(plan: Plan) -> None:
    found = _sentences(_with_share(plan, 0.59996, bound=None))
    assert "short of the target" in found
    assert "reached" not in found


def test_where_the_figures_come_from_is_always_said(plan: Plan) -> None:
    assert "Predicted by the dispatch model (nearest-dynamic)" in verdict(plan).basis
    assert "not measured on an engine" in verdict(plan).basis
    assert "uniform sources" in verdict(plan).basis
    measured = replace(plan, metrics=replace(plan.metrics, sources="measured"))
    assert "home GPUs were measured" in verdict(measured).basis


def test_without_home_gpus_the_balance_comes_first() -> None:
    even = verdict(make_plan(replace(small_sample(), dispatch=Dispatch.EVEN)))
    assert even.headline.startswith("The busiest GPU computes")
    assert any("not defined" in detail and "all-to-all" in detail for detail in even.details)


def test_the_balance_objective_has_its_own_bound(plan: Plan) -> None:
    balance = replace(plan, options=replace(plan.options, objective=Objective.BALANCE))
    assert verdict(balance).headline.startswith("The busiest GPU computes")
    assert "No layout's worst window can be below 1.000 (proven; relaxation: mean load)." in verdict(balance).details
    assert any("home GPU" in detail for detail in verdict(balance).details)
    unproven = replace(balance, bound=NONE)
    assert "How far from the best possible balance this is, is not known." in verdict(unproven).details


def test_a_cap_out_of_reach_is_said(plan: Plan) -> None:
    loose = replace(plan, options=replace(plan.options, max_imbalance=1.01, max_imbalance_used=1.2))
    assert "The imbalance asked for, 1.01, is out of reach; 1.200, the smallest found, was the cap." in _sentences(
        loose
    )
    assert "above the cap" not in _sentences(loose)


def test_a_cap_that_is_passed_is_said(plan: Plan) -> None:
    passed = replace(plan, options=replace(plan.options, max_imbalance=1.02, max_imbalance_used=1.02))
    assert "The worst window's imbalance is above the cap of 1.02." in _sentences(passed)


def test_the_holdout_is_said() -> None:
    assert "kept apart" not in _sentences(make_plan(small_sample()))
    plan = make_plan(replace(small_sample(), holdout=skewed_demand(seed=9)))
    assert plan.metrics.holdout is not None
    assert f"the imbalance is {plan.metrics.holdout.imbalance:.3f}" in _sentences(plan)


def test_the_node_scope_speaks_of_nodes() -> None:
    plan = make_plan(replace(small_sample(), topology=Topology(4, 2), local_scope=LocalScope.NODE))
    assert "on their home node" in verdict(plan).headline
    assert key_figures(plan)[0].name == "local_node"


def test_key_figures_stand_beside_the_layout_before(plan: Plan) -> None:
    figures = {figure.name: figure for figure in key_figures(plan)}
    assert list(figures) == ["local_gpu", "imbalance", "balancedness", "overflow_share", "moved_slots"]
    trivial: PlanMetrics = plan.baselines["trivial"]
    assert figures["imbalance"].value == f"{plan.metrics.imbalance:.3f}"
    assert figures["imbalance"].before == f"{trivial.imbalance:.3f}"
    assert figures["moved_slots"].note == byte_size(plan.moves.moved_bytes)
    unknown = replace(plan, baselines={}, moves=replace(plan.moves, moved_bytes=None))
    assert key_figures(unknown)[0].before == ""
    assert key_figures(unknown)[-1].note == "size of an expert unknown"


def test_the_start_command_fits_the_plan(plan: Plan) -> None:
    start = dict(facts.commands(plan))["Start an engine on it"]
    assert "--ep-num-redundant-experts 16" in start
    assert "--ep-size 4" in start
    assert "--ep-dispatch-algorithm dynamic" in start
    static = replace(plan, options=replace(plan.options, dispatch=Dispatch.NEAREST_STATIC))
    assert "--ep-dispatch-algorithm static" in dict(facts.commands(static))["Start an engine on it"]


def test_every_dispatch_has_an_engine_option() -> None:
    assert set(facts.ENGINE_DISPATCH) == set(Dispatch)


def test_the_subject_names_what_is_known(plan: Plan) -> None:
    assert facts.subject(plan) == "tiny-moe on 4 GPUs"
    assert facts.subject(replace(plan, topology=Topology(4, 2))) == "tiny-moe on 4 GPUs in 2 nodes"
    unnamed = replace(plan, model=replace(plan.model, name="", top_k=None))
    assert facts.subject(unnamed) == "an unnamed model on 4 GPUs"
    assert "not recorded" in facts.model_facts(unnamed)["Experts"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (percent(0.5364), "53.6 %"),
        (percent(None), "\N{EN DASH}"),
        (percent(0.6, digits=0), "60 %"),
        (points(0.064), "6.4 points"),
        (points(-0.0001), "less than 0.1 points"),
        (ratio(1.0526), "1.053"),
        (ratio(None), "\N{EN DASH}"),
        (times(2.409), "2.41 \N{MULTIPLICATION SIGN}"),
        (times(31.66), "31.7 \N{MULTIPLICATION SIGN}"),
        (times(256.0), "256 \N{MULTIPLICATION SIGN}"),
        (count(1234567), "1,234,567"),
        (byte_size(None), "\N{EN DASH}"),
        (byte_size(999), "999 B"),
        (byte_size(5_300_000_000), "5.3 GB"),
        (byte_size(10**19), "1e+04 PB"),
        (ranges((0, 1, 2, 5, 7, 8)), "0\N{EN DASH}2, 5, 7\N{EN DASH}8"),
        (ranges(()), "\N{EN DASH}"),
    ],
)
def test_numbers_are_written_for_people(shown: str, expected: str) -> None:
    assert shown.replace(NARROW_SPACE, " ") == expected
