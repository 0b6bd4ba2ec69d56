"""The findings of ``serving.py`` as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime

from tests.gpu.load_metrics import SATURATED
from tests.gpu.markdown import Finding, markdown, of_kind
from tests.gpu.slot_choice import LOCAL_TARGET, WORTH
from tests.gpu.tables import largest_errors, plans, requests, stages

HEAD = (
    *("layout", "output tokens/s/GPU", "input tokens/s/GPU", "first token ms, median", "p99"),
    *("ms per output token, median", "p99", "own-GPU share", "copies/token", "imbalance", "push ms"),
)
NOTE = (
    "Medians over rounds, with the least and the largest. Share, copies and imbalance: predicted from the recording of "
    "the same half under another layout / counted in the engine while it served, as if every GPU had had its recorded "
    "share of the tokens.\n"
)


def serving_table(found: Sequence[Finding], *, gpus: int) -> str:
    """Return all tables, with the date, what was served and what failed."""
    parts = [f"## Serving on {gpus} GPUs, {datetime.now(UTC):%Y-%m-%d}\n", *map(_model, of_kind(found, "model"))]
    parts += [
        f"Engine on {one['model']} did not come up: {one['reason'].strip().splitlines()[-1][:300]}\n"
        for one in of_kind(found, "not up")
        if "model" in one
    ]
    parts.append(slots(found))
    parts += [part for where in _places(found) for part in (window(found, *where), verdict(found, *where))]
    parts += [NOTE if of_kind(found, "served") else "", *saturated(found), largest_errors(found), plans(found)]
    parts += [
        f"Left out: engine {one['engine']}, {one['case']}, {one['concurrency']} in flight.\n"
        for one in of_kind(found, "left out")
    ]
    parts += [requests(found), stages(found)]
    return "\n".join(part for part in parts if part)


def _model(one: Finding) -> str:
    attention = "MLA attention" if one["attention"] == "mla" else "plain attention (Qwen3-MoE's architecture)"
    dense = f", {one['dense_layers']} dense before them" if one["dense_layers"] else ""
    return (
        f"Checkpoint `{one['name']}` with random weights and {attention}: {one['layers']} layers with experts{dense}, "
        f"hidden {one['hidden']}, {one['experts']} experts, top-{one['top_k']}. Traffic is made up (domains of random "
        "tokens, temperature 1). Behind SGLang's DeepEP dispatcher (normal mode, no CUDA graphs) over the NCCL "
        "stand-in.\n"
    )


def slots(found: Sequence[Finding]) -> str:
    """Numbers of slots: the fewest for the share, and the predicted times that the other was chosen by."""
    rows = [
        (
            one["case"],
            one["fewest"],
            one["chosen"],
            ", ".join(f"{number}: {time}" for number, time in one["moe_layer_us"].items()),
        )
        for one in of_kind(found, "slots")
    ]
    if not rows:
        return ""
    head = ("case", f"fewest for {LOCAL_TARGET:.0%} own-GPU share", "chosen for step time", "predicted us a MoE layer")
    rule = f"Chosen: the smallest number whose predicted time is within {WORTH:.0%} of the least.\n"
    return f"{markdown(head, rows)}\n{rule}"


def window(found: Sequence[Finding], engine: str, case: str, concurrency: int) -> str:
    """Layouts beside each other under one load."""
    same = _of(found, "served", engine, case, concurrency)
    counts = {one["layout"]: one for one in _of(found, "layout counts", engine, case, concurrency)}
    rows = []
    for name in dict.fromkeys(one["layout"] for one in same):
        rounds = [one for one in same if one["layout"] == name]
        counted = counts.get(name, {})
        rows.append(
            (
                name,
                _spread([one["output_tokens_per_s_gpu"] for one in rounds]),
                _spread([one["input_tokens_per_s_gpu"] for one in rounds]),
                *(
                    _spread([one[figure][part] for one in rounds if one[figure]])
                    for figure in ("first_token_ms", "token_ms")
                    for part in ("median", "p99")
                ),
                *(_both(counted.get(figure)) for figure in ("local_gpu", "copies_per_token", "imbalance")),
                _spread([one["push_ms"] for one in rounds if one["push_ms"] is not None]),
            )
        )
    return f"### {same[0]['slots']} slots, {case}, {concurrency} requests in flight\n\n{markdown(HEAD, rows)}"


def verdict(found: Sequence[Finding], engine: str, case: str, concurrency: int) -> str:
    """Say how each of moeplan's layouts does against the engine's initial one and EPLB."""
    same = _of(found, "served", engine, case, concurrency)
    figure = "input_tokens_per_s_gpu" if "prefill" in case else "output_tokens_per_s_gpu"
    rates: dict[str, list[float]] = {}
    for one in same:
        rates.setdefault(one["layout"], []).append(one[figure])
    lines = []
    for name, ours in rates.items():
        for other in ("initial", "eplb") if name.startswith("moeplan") else ():
            theirs = rates.get(other)
            if not theirs or not statistics.median(theirs):
                continue
            more = 100 * (statistics.median(ours) / statistics.median(theirs) - 1)
            apart = "apart" if min(ours) > max(theirs) or max(ours) < min(theirs) else "overlap"
            lines.append(
                f"{name} against {other}: {more:+.1f} % {figure.split('_')[0]} tokens per second (rounds {apart}).\n"
            )
    return "\n".join(lines)


def saturated(found: Sequence[Finding]) -> list[str]:
    """Warn of windows in which clients or the engine's own front end, not the GPUs, may have set the pace."""
    lines = []
    for figure, who in (("client_share", "clients"), ("front_end_share", "the engine's HTTP processes")):
        busy = [one for one in of_kind(found, "served") if one[figure] > SATURATED]
        most = max((one[figure] for one in of_kind(found, "served")), default=0.0)
        if busy:
            where = ", ".join(dict.fromkeys(f"{one['case']} at {one['concurrency']}" for one in busy))
            lines.append(
                f"WARNING: in {len(busy)} windows one of {who} took more than {SATURATED:.0%} of a core (at most "
                f"{most:.0%}), so that rates there are not the GPUs' alone: {where}.\n"
            )
        elif most:
            lines.append(f"The busiest of {who} took {most:.0%} of a core at most.\n")
    return lines


def _of(found: Sequence[Finding], kind: str, engine: str, case: str, concurrency: int) -> list[Finding]:
    return [
        one
        for one in of_kind(found, kind)
        if (one["engine"], one["case"], one["concurrency"]) == (engine, case, concurrency)
    ]


def _places(found: Sequence[Finding]) -> list[tuple[str, str, int]]:
    return list(dict.fromkeys((one["engine"], one["case"], one["concurrency"]) for one in of_kind(found, "served")))


def _spread(values: Sequence[float]) -> str | None:
    if not values:
        return None
    digits = 0 if min(values) >= 1000 else 1 if min(values) >= 100 else 2
    low, middle, high = (f"{each:.{digits}f}" for each in (min(values), statistics.median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low} .. {high})"


def _both(figure: Finding | None) -> str | None:
    return None if figure is None else f"{figure['predicted']} / {figure['counted']}"
