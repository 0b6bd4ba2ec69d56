"""What a plan is worth, in sentences: the first thing on the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from api.report.numbers import byte_size, count, fine_percent, percent, points, ratio
from api.time_words import microseconds, time_sentences
from placement.metrics import Metrics
from placement.plan import Plan
from placement.problem import LocalScope, Objective
from placement.solution import Status


@dataclass(frozen=True)
class Verdict:
    """The headline and what qualifies it.

    Attributes
    ----------
    headline : str
        The figure that the objective is about, against its target.
    details : tuple of str
        One sentence each.
    basis : str
        Where the figures come from.
    """

    headline: str
    details: tuple[str, ...]
    basis: str


@dataclass(frozen=True)
class KeyFigure:
    """One figure of the plan beside the same of the layout before; ``before`` is empty where there is none."""

    name: str
    value: str
    before: str
    note: str


def verdict(plan: Plan) -> Verdict:
    """Say whether the target is reached, what is proven, and on what the figures rest."""
    local, balance = _local_sentence(plan), _balance_sentence(plan.metrics)
    copies = _copies_sentence(plan)
    balance_first = plan.options.objective is Objective.BALANCE or plan.local is None
    headline, *others = (balance, local) if balance_first else (local, balance)
    if copies and plan.options.objective is Objective.TRAFFIC:
        headline, *others = copies, headline, *others
    elif copies:
        others = [*others, copies]
    details = [
        *others,
        _proof_sentence(plan),
        *_cap_sentence(plan),
        *_holdout_sentence(plan),
        *(f"{each[0].upper()}{each[1:]}." for each in time_sentences(plan)),
    ]
    return Verdict(headline, tuple(each for each in details if each), _basis_sentence(plan))


def key_figures(plan: Plan) -> tuple[KeyFigure, ...]:
    """Return the figures that stand at the top of the page."""
    moves, options = plan.moves, plan.options
    cost = "size of an expert unknown" if moves.moved_bytes is None else byte_size(moves.moved_bytes)
    return (
        _figure(plan, local_name(plan), percent, note=f"target {percent(options.local_target, digits=0)}"),
        _figure(plan, "imbalance", ratio, note="largest over mean GPU load"),
        _figure(plan, "balancedness", ratio, note="1 / imbalance"),
        _figure(plan, "overflow_share", fine_percent, note=f"above {options.capacity_factor:g} times the mean load"),
        KeyFigure("moved_slots", count(moves.moved_slots), "", cost),
    )


def local_name(plan: Plan) -> str:
    """Name of the share that the target is about."""
    return "local_node" if plan.options.local_scope is LocalScope.NODE else "local_gpu"


def _figure(plan: Plan, name: str, show: Callable[[float | None], str], *, note: str) -> KeyFigure:
    before = plan.baselines.get(plan.moves.before)
    return KeyFigure(name, show(getattr(plan.metrics, name)), show(getattr(before, name)) if before else "", note)


def _local_sentence(plan: Plan) -> str:
    if plan.local is None:
        return f"The share served at home is not defined: {plan.metrics.local_reason or 'no home GPUs'}."
    place = "node" if plan.options.local_scope is LocalScope.NODE else "GPU"
    share, target = percent(plan.local), percent(plan.options.local_target, digits=0)
    if plan.local >= plan.options.local_target:
        return f"{share} of routed tokens stay on their home {place}: the target of {target} is reached."
    short = points(plan.options.local_target - plan.local)
    return f"{share} of routed tokens stay on their home {place}: {short} short of the target of {target}."


def _copies_sentence(plan: Plan) -> str:
    """Say how many copies of a token are sent, beside eplb; nothing without a token trace."""
    ours, eplb = plan.metrics.gpus_per_token, plan.baselines.get("eplb")
    if ours is None:
        return ""
    beside = "" if eplb is None or eplb.gpus_per_token is None else f" (eplb: {ratio(eplb.gpus_per_token)})"
    return f"A token is sent to {ratio(ours)} other GPUs per layer{beside}."


def _balance_sentence(metrics: Metrics) -> str:
    sentence = f"The busiest GPU computes {ratio(metrics.imbalance)} times the mean load"
    if len(metrics.windows) == 1:
        return f"{sentence}."
    worst = metrics.worst_window
    return f"{sentence}, {ratio(worst.imbalance)} times in the worst window ({worst.name})."


def _proof_sentence(plan: Plan) -> str:
    if plan.options.objective is Objective.TRAFFIC and plan.metrics.gpus_per_token is not None:
        fewest = plan.bound.gpus_per_token
        if fewest is None:
            return "How far from the fewest possible copies this is, is not known."
        relaxation = plan.bound.relaxation["gpus_per_token"]
        return f"No layout can send a token to fewer than {ratio(fewest)} (proven; relaxation: {relaxation})."
    if plan.options.objective is Objective.STEP_TIME:
        return _time_proof(plan)
    if plan.options.objective is Objective.BALANCE:
        bound = plan.bound.imbalance
        if bound is None:
            return "How far from the best possible balance this is, is not known."
        relaxation = plan.bound.relaxation["imbalance"]
        return f"No layout's worst window can be below {ratio(bound)} (proven; relaxation: {relaxation})."
    bound = plan.local_bound
    if bound is None:
        return "" if plan.local is None else "How far from the best possible share this is, is not known."
    relaxation = plan.bound.relaxation[local_name(plan)]
    sentence = (
        f"No layout of {plan.slots_per_gpu} slots per GPU can pass {percent(bound)} (proven; relaxation: {relaxation})"
    )
    if bound < plan.options.local_target:
        return f"{sentence}: the target needs more slots."
    if plan.status is Status.OPTIMAL:
        return f"{sentence}: this plan is optimal."
    return f"{sentence}; this plan is within {percent(plan.gap, digits=2)} of it."


def _time_proof(plan: Plan) -> str:
    bound = plan.bound.moe_layer_s
    if bound is None or plan.gap is None:
        return "How far from the least possible time this is, is not known."
    relaxation = plan.bound.relaxation["moe_layer_s"]
    return (
        f"No layout's MoE layer can be predicted below {microseconds(bound)} us (proven; relaxation: {relaxation}); "
        f"this plan is {percent(plan.gap, digits=2)} above it."
    )


def _cap_sentence(plan: Plan) -> tuple[str, ...]:
    asked, used = plan.options.max_imbalance, plan.options.max_imbalance_used
    sentences = []
    if used > asked:
        sentences.append(
            f"The imbalance asked for, {asked:g}, is out of reach; {ratio(used)}, the smallest found, was the cap."
        )
    if plan.metrics.worst_window.imbalance > used * (1 + 1e-6):
        sentences.append(f"The worst window's imbalance is above the cap of {used:.4g}.")
    return tuple(sentences)


def _holdout_sentence(plan: Plan) -> tuple[str, ...]:
    holdout = plan.metrics.holdout
    if holdout is None:
        return ()
    share = holdout.local_node if plan.options.local_scope is LocalScope.NODE else holdout.local_gpu
    local = "" if share is None else f"{percent(share)} stay at home and "
    return (f"On traffic kept apart from planning, {local}the imbalance is {ratio(holdout.imbalance)}.",)


def _basis_sentence(plan: Plan) -> str:
    homes = {
        "measured": "home GPUs were measured",
        "uniform": "tokens were taken as spread evenly over all GPUs (uniform sources)",
    }[plan.metrics.sources]
    return (
        f"Predicted by the dispatch model ({plan.metrics.dispatch}) from recorded traffic, not measured on an engine; "
        f"{homes}."
    )
