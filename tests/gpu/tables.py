"""The findings of a run as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime

from tests.gpu.hardware_tables import hardware, sizes
from tests.gpu.markdown import Finding, markdown, of_kind


def two_gpu_table(found: Sequence[Finding]) -> str:
    """Return all tables of the acceptance on two GPUs, with its date and what failed."""
    parts = [f"## Acceptance on two GPUs, {datetime.now(UTC):%Y-%m-%d}\n"]
    parts += [f"Rehearsal: {finding['detail']}.\n" for finding in of_kind(found, "rehearsal")]
    parts += [demands(found), loops(found), pushes(found), recording(found)]
    parts += [layouts(found, *where) for where in _places(found)]
    parts += [hardware(found), sizes(found), requests(found), stages(found)]
    return "\n".join(part for part in parts if part)


def grid_table(found: Sequence[Finding], *, gpus: int) -> str:
    """Return all tables of the acceptance on more GPUs, with its date and what failed."""
    parts = [f"## Acceptance on {gpus} GPUs, {datetime.now(UTC):%Y-%m-%d}\n"]
    parts += [f"Rehearsal: {finding['detail']}.\n" for finding in of_kind(found, "rehearsal")]
    for where in _places(found):
        parts += [layouts(found, *where), predicted_steps(found, *where), verdict(found, *where)]
    parts += [largest_errors(found), plans(found)]
    parts += [
        f"Left out on engine {one['engine']}{', ' + one['case'] if one['case'] else ''}: {'; '.join(one['layouts'])}.\n"
        for one in of_kind(found, "left out")
    ]
    parts += [requests(found), stages(found)]
    return "\n".join(part for part in parts if part)


def predicted_steps(found: Sequence[Finding], engine: str, case: str) -> str:
    """Measured and predicted times of whole steps, and of what is inside the MoE layers."""
    rows = [
        (
            one["layout"],
            one["steps"],
            one["measured_ms"],
            "{} .. {}".format(*one["quarters_ms"]),
            one["predicted_ms"],
            f"{100 * one['relative_error']:+.1f} %",
            one["predicted_from_counts_ms"],
            f"{one['moe_ms']['predicted']} / {one['moe_ms']['measured']}",
            f"{one['experts_ms']['predicted']} / {one['experts_ms']['measured']}",
        )
        for one in of_kind(found, "layout step")
        if (one["engine"], one["case"]) == (engine, case)
    ]
    head = (
        *("layout", "steps", "step ms", "quartiles", "predicted ms", "error", "predicted from counts ms"),
        *("MoE layers ms", "slowest experts ms"),
    )
    return markdown(head, rows) if rows else ""


def verdict(found: Sequence[Finding], engine: str, case: str) -> str:
    """Say how moeplan's fastest layout does against the engine's initial one and eplb, and where the time went."""
    steps = {
        one["layout"]: one for one in of_kind(found, "layout step") if (one["engine"], one["case"]) == (engine, case)
    }
    ours = [one for name, one in steps.items() if name.startswith("moeplan")]
    if not ours:
        return ""
    best = min(ours, key=lambda one: float(one["measured_ms"]))
    lines = []
    for other in (steps[name] for name in ("initial", "eplb") if name in steps):
        faster = 100 * (1 - best["measured_ms"] / other["measured_ms"])
        apart = best["quarters_ms"][1] < other["quarters_ms"][0]
        rest = {one["layout"]: one["moe_ms"]["measured"] - one["experts_ms"]["measured"] for one in (best, other)}
        lines.append(
            f"{best['layout']} against {other['layout']}: {best['measured_ms']} against {other['measured_ms']} ms a "
            f"step ({faster:+.1f} % faster; quartiles {'apart' if apart else 'overlap'}); slowest experts "
            f"{best['experts_ms']['measured']} against {other['experts_ms']['measured']} ms, rest of the MoE layers "
            f"{rest[best['layout']]:.2f} against {rest[other['layout']]:.2f} ms.\n"
        )
    return "\n".join(lines)


def largest_errors(found: Sequence[Finding]) -> str:
    """The largest differences between predicted and counted or measured, over everything."""
    lines = []
    for figure in ("imbalance", "local_gpu", "copies_per_token"):
        errors = [
            abs(one[figure].get("relative_error", 0.0)) for one in of_kind(found, "layout counts") if figure in one
        ]
        if errors:
            lines.append(f"Largest relative error of {figure}: {100 * max(errors):.2f} % over {len(errors)} layouts.\n")
    errors = sorted(abs(one["relative_error"]) for one in of_kind(found, "layout step"))
    if errors:
        lines.append(
            f"Largest relative error of predicted step time: {100 * errors[-1]:.1f} %, median "
            f"{100 * statistics.median(errors):.1f} %, over {len(errors)} layouts.\n"
        )
    return "\n".join(lines)


def plans(found: Sequence[Finding]) -> str:
    """Plans that could not be made, in one sentence each."""
    return "".join(
        f"No plan for {one['goal']} ({one['model']}, {one['case']}, {one['slots']} slots): {one['error'][-300:]}\n"
        for one in of_kind(found, "plan")
        if one["error"]
    )


def loops(found: Sequence[Finding]) -> str:
    """The loop of commands."""
    rows = [
        (
            one["engine"],
            "on" if one["dp_attention"] else "off",
            one["captured_tokens"],
            f"{one['imbalance_trivial']:.3f} -> {one['imbalance_planned']:.3f}",
            one["moved_slots"],
            None if one["push_s"] is None else round(1e3 * one["push_s"], 1),
            "yes"
            if all(one["checks"].values())
            else "NO: " + ", ".join(k for k, held in one["checks"].items() if not held),
            f"{one['failed_requests']} of {one['requests']}",
        )
        for one in of_kind(found, "loop")
    ]
    head = ("engine", "DP attention", "tokens", "imbalance planned", "moved slots", "push ms", "all checks", "failed")
    return markdown(head, rows) if rows else ""


def pushes(found: Sequence[Finding]) -> str:
    """Pushes under load, one row per kind."""
    rows = []
    for how in dict.fromkeys(one["how"] for one in of_kind(found, "push")):
        same = [one for one in of_kind(found, "push") if one["how"] == how]
        rows.append(
            (
                how,
                len(same),
                _middle(same, "moved_gb"),
                _middle(same, "changed_gb"),
                _middle(same, "on_ranks_ms"),
                _middle(same, "gb_per_s"),
                _middle(same, "round_trip_ms"),
                _middle(same, "gap_ms"),
                max((one["gap_ms"] for one in same if "gap_ms" in one), default=None),
                max((one["added_gap_ms"] for one in same if "added_gap_ms" in one), default=None),
            )
        )
    for one in of_kind(found, "push command"):
        rows.append(
            ("moeplan push, with checks", 1, *[None] * 4, round(1e3 * one["command_s"]), *[one["gap_ms"]] * 2, None)
        )
    for one in of_kind(found, "gap without push"):
        rows.append(("no push", one["intervals"], *[None] * 5, one["median_ms"], one["worst_ms"], None))
    head = (
        *("push", "n", "moved GB", "changed GB", "ms on ranks", "GB/s", "round trip ms"),
        *("gap ms (median)", "gap ms (worst)", "added ms (worst)"),
    )
    links = [
        f"Copies between the GPUs: {one['one_way_gb_per_s']} GB/s one way, {one['both_ways_gb_per_s_each']} GB/s each "
        "both ways.\n"
        for one in of_kind(found, "link")
        if "one_way_gb_per_s" in one
    ]
    return (markdown(head, rows) + "\n" + "".join(links)) if rows else ""


def demands(found: Sequence[Finding]) -> str:
    """Recorded pairs of token and expert beside those that the same requests name."""
    rows = [
        (one["engine"], one["recorded_pairs"], one["requests_pairs"], one["pairs_apart"])
        for one in of_kind(found, "recorded demand")
    ]
    return markdown(("engine", "recorded pairs", "pairs of the requests", "apart"), rows) if rows else ""


def recording(found: Sequence[Finding]) -> str:
    """Throughput with recording on over off."""
    rows = [
        (
            one["engine"],
            one["phase"],
            one["pairs"],
            one["off_tokens_per_s"],
            one["median_ratio"],
            "{} .. {}".format(*one["interval_95"]),
        )
        for one in of_kind(found, "recording")
    ]
    return (
        markdown(("engine", "phase", "pairs", "tokens/s off", "on / off (median)", "95 % interval"), rows)
        if rows
        else ""
    )


def layouts(found: Sequence[Finding], engine: str, case: str) -> str:
    """Layouts on one engine under one kind of traffic: predicted and counted, and times by round."""
    where = (engine, case)
    times = [one for one in of_kind(found, "layout times") if (one["engine"], one["case"]) == where]
    counts = {one["layout"]: one for one in of_kind(found, "layout counts") if (one["engine"], one["case"]) == where}
    rows = []
    for name in dict.fromkeys(one["layout"] for one in times):
        same = [one for one in times if one["layout"] == name]
        counted = counts.get(name, {})
        rows.append(
            (
                name,
                *(_both(counted.get(figure)) for figure in ("imbalance", "local_gpu", "copies_per_token")),
                sum(one["steps"] for one in same),
                *(_rounds(same, part) for part in ("step_ms", "dispatch_ms", "experts_ms", "combine_ms")),
                *(_rounds(same, rate) for rate in ("prefill_tokens_per_s", "decode_tokens_per_s")),
                _middle(same, "push_ms"),
            )
        )
    head = (
        *("layout", "imbalance", "own-GPU share", "copies/token", "steps", "step ms", "dispatch ms", "experts ms"),
        *("combine ms", "prefill tok/s", "decode tok/s", "push ms"),
    )
    note = "Predicted / counted; times are medians of each round, parts summed over layers.\n"
    return f"### Engine {engine}{', ' + case if case else ''}\n\n{markdown(head, rows)}\n{note}" if rows else ""


def requests(found: Sequence[Finding]) -> str:
    """How many requests failed, in all."""
    counted = of_kind(found, "requests")
    failed = sum(one["failed"] for one in counted)
    return f"Failed requests: {failed} of {sum(one['requests'] for one in counted)}.\n"


def stages(found: Sequence[Finding]) -> str:
    """Stages that did not end well, in one sentence each."""
    lines = [
        f"Stage {one['stage']} {one['status']}: {one['reason'].splitlines()[0]}\n"
        for one in of_kind(found, "stage")
        if one["status"] != "done"
    ]
    return "".join(lines)


def _places(found: Sequence[Finding]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((one["engine"], one["case"]) for one in of_kind(found, "layout times")))


def _middle(same: Sequence[Finding], figure: str) -> float | None:
    values = [one[figure] for one in same if one.get(figure) is not None]
    return round(statistics.median(values), 2) if values else None


def _rounds(same: Sequence[Finding], figure: str) -> str:
    return ", ".join(str(one[figure]) for one in same if one.get(figure) is not None)


def _both(figure: Finding | None) -> str | None:
    return None if figure is None else f"{figure['predicted']} / {figure['counted']}"
