"""Whether a pushed layout is kept: its figures on the engine's own traffic beside those of the layout before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from placement.metrics import Metrics
from placement.problem import LocalScope, Objective

Json = dict[str, Any]

SHOWN = ("local_gpu", "local_node", "local_reason", "imbalance", "balancedness", "sglang_balancedness", "sources")
"""What is kept of the ruler's figures; the names are everywhere the same."""

LEAST_PAIRS_PER_GPU = 1000
"""Routed (token, expert) pairs that every GPU computes on average in a layer, over the whole time of measuring: the
load of a GPU is then known to about 3 %, and both layouts are judged on the very same pairs."""

KEPT, WORSE_THAN_BEFORE = "KEPT", "WORSE_THAN_BEFORE"

WORDS = {"local_gpu": "share at home", "local_node": "share in the home node", "imbalance": "imbalance"}


def figures(metrics: Metrics) -> Json:
    """Return the figures of a layout that are kept with a rollout."""
    return {
        **{name: getattr(metrics, name) for name in SHOWN},
        "worst_window_imbalance": metrics.worst_window.imbalance,
        "windows": len(metrics.windows),
        "tokens": sum(window.tokens for window in metrics.windows),
        "dispatch": metrics.dispatch,
    }


def judged_metric(objective: Objective, local_scope: LocalScope, measured: Json) -> str:
    """Return the figure that decides: the one that the plan was made for, where demand shows it.

    Copies per token and times are not seen in demand; plans for them are judged by balance, which both depend on. So
    are plans for locality where no token has a home.
    """
    if objective is not Objective.LOCALITY:
        return "imbalance"
    chosen = "local_gpu" if local_scope is LocalScope.GPU else "local_node"
    return "imbalance" if measured[chosen] is None else chosen


def worse_by(metric: str, value: float, reference: float) -> float:
    """Return how much worse a figure is than another, as a share of that one; below 0 where it is better.

    A share that was 0 before cannot become worse.
    """
    if metric == "imbalance":
        return value / reference - 1.0
    return 1.0 - value / reference if reference > 0 else min(0.0, -value)


@dataclass(frozen=True)
class Verdict:
    """What came of measuring.

    Attributes
    ----------
    code : str
        ``KEPT``, ``WORSE_THAN_BEFORE`` (to be taken back), ``NOT_ASKED`` (nothing was to be measured), or why nothing
        could be measured: ``NO_TRAFFIC``, ``TOO_LITTLE_TRAFFIC``, ``LAYOUT_CHANGED``, ``ENGINE_RESTARTED``, or the code
        of the engine's error.
    sentence : str
    numbers : dict
        Empty where nothing was measured; else ``metric``, ``measured``, ``before``, ``predicted`` (None where the plan
        does not say), ``worse_by`` and ``worse_than_predicted_by`` (shares, below 0 where better), ``margin``.
    """

    code: str
    sentence: str
    numbers: Json

    def to_json(self) -> Json:
        return {"code": self.code, "sentence": self.sentence, **self.numbers}


def not_measured(code: str, reason: str) -> Verdict:
    """Say that nothing was measured, and why; the layout stays."""
    return Verdict(code, f"Not measured: {reason.rstrip('.')}. The layout stays.", {})


def warnings_of(verdict: Json) -> list[Json]:
    """Return what whoever looks at an applied rollout should know: not measured, or not as predicted."""
    if verdict["code"] != KEPT:
        return [{"code": verdict["code"], "detail": verdict["sentence"]}]
    short = verdict["worse_than_predicted_by"]
    if short is None or short <= verdict["margin"]:
        return []
    metric = verdict["metric"]
    detail = (
        f"{WORDS[metric]} is {verdict['measured']:.4f} and {verdict['predicted']:.4f} was predicted, "
        f"{short:.1%} worse: traffic is not what the plan was made from."
    )
    return [{"code": "BELOW_PREDICTION", "detail": detail}]


NOT_ASKED = Verdict("NOT_ASKED", "Not measured: it was not asked for.", {})


def judge(metric: str, *, measured: Json, before: Json, predicted: Json | None, margin: float) -> Verdict:
    """Compare a layout's figure with that of the layout before on the same traffic, and with the prediction."""
    value, old = float(measured[metric]), float(before[metric])
    said = None if predicted is None else predicted[metric]
    change = worse_by(metric, value, old)
    numbers = {
        "metric": metric,
        "measured": value,
        "before": old,
        "predicted": said,
        "worse_by": change,
        "worse_than_predicted_by": None if said is None else worse_by(metric, value, float(said)),
        "margin": margin,
    }
    beside = "" if said is None else f" (predicted: {said:.4f})"
    told = f"{WORDS[metric]} is {value:.4f}{beside}; the layout before would have {old:.4f} on the same traffic"
    if change > margin:
        sentence = f"Measured: {told}. That is {change:.1%} worse, and {margin:.1%} is put up with."
        return Verdict(WORSE_THAN_BEFORE, sentence, numbers)
    return Verdict(KEPT, f"Measured: {told}. It is kept.", numbers)
