"""What the predicted times say, in sentences: for the terminal and the report."""

from __future__ import annotations

from placement.comparison import OURS
from placement.plan import Plan
from placement.plan_metrics import PlanMetrics
from placement.problem import LocalScope, Objective
from placement.step_time import MoeLayerTime

LOCALITY = Objective.LOCALITY.value
"""Name of the plan for locality beside one for step time."""

WORTH_SAYING = 0.005
"""Predicted times that differ by less are called equal."""

BASES = {
    "counts": "copies per token and active experts are expected values, as if experts were chosen independently",
    "tokens": "copies per token were counted on the token trace, active experts are expected values, as if experts "
    "were chosen independently",
}


def time_sentences(plan: Plan) -> tuple[str, ...]:
    """Say what is predicted, whether another layout is faster, and whether the target pays; empty without hardware."""
    ours = plan.metrics.moe_layer
    if ours is None:
        return ()
    return (_prediction(ours), _against_others(plan, ours), *_without_all_to_all(ours))


def time_sentences_of(time: MoeLayerTime) -> tuple[str, ...]:
    """Say what is predicted of one layout alone."""
    return (_prediction(time), *_without_all_to_all(time))


def microseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def _prediction(time: MoeLayerTime) -> str:
    parts = f"experts {microseconds(time.expert_s)}"
    if time.all_to_all_s is not None:
        parts += f", all-to-all {microseconds(time.all_to_all_s)}"
    return (
        f"a MoE layer is predicted to take {microseconds(time.moe_layer_s)} us ({parts}) on {time.hardware}, "
        f"{time.phase} of {time.tokens_per_gpu} tokens per GPU; {BASES[time.basis]}"
    )


def _against_others(plan: Plan, ours: MoeLayerTime) -> str:
    rows = {name: row for name, row in plan.baselines.items() if row.moe_layer is not None}
    times = {name: row.moe_layer.moe_layer_s for name, row in rows.items() if row.moe_layer is not None}
    target = plan.options.local_target
    reached = plan.local is not None and plan.local >= target
    if not times:
        return f"nothing to compare {OURS} with"
    if LOCALITY in times:
        return _against_locality(plan, rows[LOCALITY], times[LOCALITY] / ours.moe_layer_s - 1)
    fastest = min(times, key=lambda name: times[name])
    saved = 1 - times[fastest] / ours.moe_layer_s
    if saved <= WORTH_SAYING:
        slower = 1 - ours.moe_layer_s / times[fastest]
        by = f", {slower:.1%} less than {fastest}" if slower > WORTH_SAYING else f"; {fastest} takes as long"
        pays = f": the target of {target:.0%} pays" if reached and slower > WORTH_SAYING else ""
        return f"that is the least of the layouts compared{by}{pays}"
    if reached:
        return f"{fastest} is predicted to take {saved:.1%} less: the target of {target:.0%} does not pay here"
    return f"{fastest} is predicted to take {saved:.1%} less"


def _against_locality(plan: Plan, row: PlanMetrics, longer: float) -> str:
    """Compare the fastest plan with the most local one under the cap."""
    target = plan.options.local_target
    share = row.local_node if plan.options.local_scope is LocalScope.NODE else row.local_gpu
    at_home = "" if share is None else f" ({share:.1%} at home)"
    said = f"the plan for locality{at_home} takes {longer:.1%} longer"
    if longer <= WORTH_SAYING:
        said = f"the plan for locality{at_home} takes as long"
    if share is None or share < target:
        return f"{said} and misses the target of {target:.0%}"
    return f"{said}: the target of {target:.0%} {'pays' if longer <= WORTH_SAYING else 'does not pay here'}"


def _without_all_to_all(time: MoeLayerTime) -> tuple[str, ...]:
    if time.all_to_all_s is not None:
        return ()
    return ("without an all-to-all backend locality has no effect on time: balance and active experts count",)
