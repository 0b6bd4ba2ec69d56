"""What the plan is of and how it was made; and the commands that use it."""

from __future__ import annotations

from api.report.numbers import count, percent, ranges, ratio
from placement.dispatch import Dispatch
from placement.metrics import Metrics
from placement.plan import Plan

ENGINE_DISPATCH = {
    Dispatch.NEAREST_DYNAMIC: "dynamic",
    Dispatch.NEAREST_STATIC: "static",
    Dispatch.EVEN: "dynamic",
}
"""Value of SGLang's ``--ep-dispatch-algorithm`` that each rule stands for."""


def subject(plan: Plan) -> str:
    """Name what was planned, in a few words."""
    machine = f"{plan.topology.gpus} GPUs" if plan.topology.gpus > 1 else "one GPU"
    nodes = f" in {plan.topology.nodes} nodes" if plan.topology.nodes > 1 else ""
    return f"{plan.model.name or 'an unnamed model'} on {machine}{nodes}"


def model_facts(plan: Plan) -> dict[str, str]:
    """Return what is known of model and machine."""
    model, topology = plan.model, plan.topology
    redundant = plan.layout.slots - model.experts
    return {
        "Model": model.name or "not named in the recording",
        "Decoder layers": f"{model.layers}, with experts: {ranges(model.moe_layers)}",
        "Experts": f"{model.experts} per layer, "
        + (f"{model.top_k} per token" if model.top_k else "number per token not recorded"),
        "GPUs": f"{topology.gpus}, {topology.nodes} node{'s' if topology.nodes > 1 else ''}",
        "Slots": f"{plan.slots_per_gpu} per GPU, {count(plan.layout.slots)} per layer ({redundant} redundant)",
    }


def option_facts(plan: Plan) -> dict[str, str]:
    """Return what was asked for."""
    options = plan.options
    facts = {
        "Objective": f"{options.objective}, local scope {options.local_scope}",
        "Status": str(plan.status),
        "Local target": percent(options.local_target, digits=0),
        "Largest imbalance": f"{options.max_imbalance:g} asked, {options.max_imbalance_used:.4g} used",
        "Hedge": f"{percent(options.hedge, digits=1)} of the local share",
        "Dispatch": f"{options.dispatch}",
        "Sources": plan.metrics.sources,
        "Windows": f"{len(plan.window_names)}, cut by {options.window_by}"
        + (f", {percent(options.holdout_share, digits=0)} kept apart" if options.holdout_share else ""),
        "Slots set by": options.slots_from,
        "Capacity factor": f"{options.capacity_factor:g}",
        "Seed": str(options.seed),
    }
    if options.max_overflow is not None:
        facts["Largest overflow"] = percent(options.max_overflow, digits=2)
    if options.time_limit_s is not None:
        facts["Time limit"] = f"{options.time_limit_s:g} s"
    return facts


def token_notes(metrics: Metrics) -> tuple[str, ...]:
    """Say what predicted times, and the figures from a token trace, mean and rest on; nothing without them."""
    basis, notes = metrics.token_basis, []
    if metrics.moe_layer is not None:
        notes.append(
            "moe_layer_us: predicted microseconds of a MoE layer, the slowest GPU's experts plus the slowest GPU's "
            "all-to-all."
        )
    if basis is None:
        return tuple(notes)
    if metrics.gpus_per_token is not None:
        tokens = f"{count(basis.tokens)} tokens"
        if basis.tokens < basis.recorded_tokens:
            tokens += f" drawn by whole requests from {count(basis.recorded_tokens)}"
        interval = basis.gpus_per_token_interval
        spread = "" if interval is None else f"; 95 % confidence: {ratio(interval[0])} to {ratio(interval[1])}"
        notes.append(
            "gpus_per_token: distinct other GPUs that a token must be sent to in a layer, what an all-to-all pays that "
            f"sends once per destination; over {tokens}{spread}."
        )
    if metrics.active_experts is not None:
        notes.append(
            "active_experts: distinct experts hit on the busiest GPU per decode step and layer, what memory-bound "
            f"decoding pays; over {count(basis.steps)} of {count(basis.recorded_steps)} recorded steps."
        )
    return tuple(notes)


def commands(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return what each command does, and the command."""
    redundant = plan.layout.slots - plan.model.experts
    return (
        ("Write the file that SGLang starts with", "moeplan export PLAN.json --format sglang --out layout.json"),
        (
            "Start an engine on it",
            "python -m sglang.launch_server ... \\\n"
            f"  --ep-size {plan.topology.gpus} --ep-num-redundant-experts {redundant} \\\n"
            f"  --init-expert-location layout.json --ep-dispatch-algorithm {ENGINE_DISPATCH[plan.options.dispatch]}",
        ),
        (
            "Push it into a running engine, first without moving anything",
            "moeplan push PLAN.json --engine URL --dry-run",
        ),
        ("Take it back", "moeplan rollback --engine URL"),
    )
