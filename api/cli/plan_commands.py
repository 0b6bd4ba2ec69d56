"""``moeplan plan``, ``compare`` and ``evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.exit_codes import TARGET_MISSED
from api.cli.output import metrics_table, number, print_json, print_notices, print_table, progress_bar, windows_table
from api.loading import load_demand, read_options, read_topology
from api.planning import PlanRequest, plan_from_files
from placement.comparison import OURS
from placement.dispatch import Dispatch
from placement.plan import Plan
from placement.problem import LocalScope, Objective
from placement.score import score
from placement.solution import Status
from profiler.formats import read_layout
from profiler.plan_file import write_plan

SlotsPerGpu = Annotated[int | None, typer.Option(help="Slots per GPU.", show_default=False)]
Redundant = Annotated[
    int | None, typer.Option(help="Redundant slots in all (SGLang's --ep-num-redundant-experts).", show_default=False)
]
Fit = Annotated[bool, typer.Option("--fit", help="Find the fewest slots per GPU that reach the local target.")]
LocalTarget = Annotated[
    float | None, typer.Option(help="Wanted local share, 0..1; missed: exit code 4.", show_default=False)
]
MaxImbalance = Annotated[float, typer.Option(help="Cap on the worst window's imbalance.")]
TimeLimit = Annotated[float | None, typer.Option("--time-limit", help="Seconds for the solver.", show_default=False)]
Threads = Annotated[int, typer.Option(help="Threads of the exact solver.")]
Groups = Annotated[
    int | None,
    typer.Option("--expert-groups", help="Router groups, for the hierarchical EPLB baseline.", show_default=False),
]
Holdout = Annotated[
    float | None,
    typer.Option(help="Share of the last windows (or last requests) kept apart to judge on.", show_default=False),
]
Current = Annotated[Path | None, typer.Option(help="Layout that runs now; ties go to fewer moves.", show_default=False)]
ExpertBytes = Annotated[
    int | None, typer.Option(help="Bytes of one expert's weights, for moved_bytes.", show_default=False)
]
DraftExperts = Annotated[int | None, typer.Option(help="Experts of the draft model.", show_default=False)]
DraftRedundant = Annotated[
    int | None, typer.Option(help="Redundant slots of the draft model (default: the target's).", show_default=False)
]
LiveGpus = Annotated[
    str | None, typer.Option(help="Plan for the GPUs left after failures, like 0,1,3.", show_default=False)
]


def plan(
    inputs: cli.Inputs,
    gpus: cli.Gpus,
    out: Annotated[Path, typer.Option(help="Plan to write (.json).", show_default=False)],
    nodes: cli.Nodes = 1,
    topology: cli.TopologyFile = None,
    slots_per_gpu: SlotsPerGpu = None,
    redundant: Redundant = None,
    fit: Fit = False,
    local_target: LocalTarget = None,
    local_scope: LocalScope = LocalScope.GPU,
    objective: Objective = Objective.LOCALITY,
    max_imbalance: MaxImbalance = 1.05,
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC,
    window_by: cli.WindowByText = "file",
    sources: cli.SourcesMode = "auto",
    holdout: Holdout = None,
    current: Current = None,
    capacity_factor: cli.CapacityFactor = 1.25,
    expert_groups: Groups = None,
    expert_bytes: ExpertBytes = None,
    draft_experts: DraftExperts = None,
    draft_redundant: DraftRedundant = None,
    live_gpus: LiveGpus = None,
    model: cli.ModelConfig = None,
    experts: cli.Experts = None,
    ranks: cli.Ranks = None,
    allow_partial: cli.AllowPartial = False,
    map_history: cli.MapHistory = None,
    time_limit: TimeLimit = None,
    seed: cli.Seed = 0,
    threads: Threads = 1,
    as_json: cli.Json = False,
) -> None:
    """Plan a layout from recordings, with its proven bound and the baselines beside it."""
    request = PlanRequest(
        gpus=gpus,
        nodes=nodes,
        topology_file=topology,
        slots_per_gpu=slots_per_gpu,
        redundant=redundant,
        fit=fit,
        local_target=local_target,
        local_scope=local_scope,
        objective=objective,
        max_imbalance=max_imbalance,
        dispatch=dispatch,
        window_by=window_by,
        sources=sources,
        holdout=holdout,
        current=current,
        capacity_factor=capacity_factor,
        expert_groups=expert_groups,
        expert_bytes=expert_bytes,
        draft_experts=draft_experts,
        draft_redundant=draft_redundant,
        live_gpus=live_gpus,
        time_limit_s=time_limit,
        seed=seed,
        threads=threads,
    )
    read = read_options(model=model, experts=experts, ranks=ranks, allow_partial=allow_partial, map_history=map_history)
    with progress_bar("planning") as advance:
        made = plan_from_files(inputs, read, request, progress=advance)
    write_plan(made, out)
    if as_json:
        print_json(made.summary())
    else:
        print_plan(made)
        print(f"wrote {out}")
    if made.status is Status.TARGET_MISSED:
        raise typer.Exit(TARGET_MISSED)


def compare(
    inputs: cli.Inputs,
    gpus: cli.Gpus,
    nodes: cli.Nodes = 1,
    topology: cli.TopologyFile = None,
    slots_per_gpu: SlotsPerGpu = None,
    redundant: Redundant = None,
    fit: Fit = False,
    local_target: LocalTarget = None,
    local_scope: LocalScope = LocalScope.GPU,
    objective: Objective = Objective.LOCALITY,
    max_imbalance: MaxImbalance = 1.05,
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC,
    window_by: cli.WindowByText = "file",
    sources: cli.SourcesMode = "auto",
    holdout: Holdout = None,
    test: Annotated[
        list[Path] | None, typer.Option(help="Recordings to judge on; planned on INPUT.", show_default=False)
    ] = None,
    current: Current = None,
    capacity_factor: cli.CapacityFactor = 1.25,
    expert_groups: Groups = None,
    expert_bytes: ExpertBytes = None,
    draft_experts: DraftExperts = None,
    draft_redundant: DraftRedundant = None,
    live_gpus: LiveGpus = None,
    model: cli.ModelConfig = None,
    experts: cli.Experts = None,
    ranks: cli.Ranks = None,
    allow_partial: cli.AllowPartial = False,
    map_history: cli.MapHistory = None,
    time_limit: TimeLimit = None,
    seed: cli.Seed = 0,
    threads: Threads = 1,
    as_json: cli.Json = False,
) -> None:
    """Compare trivial, random, eplb and hot-replication with our plan: same slots, same ruler, one run."""
    request = PlanRequest(
        gpus=gpus,
        nodes=nodes,
        topology_file=topology,
        slots_per_gpu=slots_per_gpu,
        redundant=redundant,
        fit=fit,
        local_target=local_target,
        local_scope=local_scope,
        objective=objective,
        max_imbalance=max_imbalance,
        dispatch=dispatch,
        window_by=window_by,
        sources=sources,
        holdout=holdout,
        test=tuple(test or ()),
        current=current,
        capacity_factor=capacity_factor,
        expert_groups=expert_groups,
        expert_bytes=expert_bytes,
        draft_experts=draft_experts,
        draft_redundant=draft_redundant,
        live_gpus=live_gpus,
        time_limit_s=time_limit,
        seed=seed,
        threads=threads,
    )
    read = read_options(model=model, experts=experts, ranks=ranks, allow_partial=allow_partial, map_history=map_history)
    with progress_bar("planning") as advance:
        made = plan_from_files(inputs, read, request, progress=advance)
    if as_json:
        print_json(made.summary())
    else:
        print_plan(made)
    if made.status is Status.TARGET_MISSED:
        raise typer.Exit(TARGET_MISSED)


def evaluate(
    layout: Annotated[Path, typer.Argument(help="moeplan plan or SGLang JSON layout.", show_default=False)],
    inputs: cli.Inputs,
    gpus: cli.Gpus,
    nodes: cli.Nodes = 1,
    topology: cli.TopologyFile = None,
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC,
    window_by: cli.WindowByText = "file",
    sources: cli.SourcesMode = "auto",
    capacity_factor: cli.CapacityFactor = 1.25,
    model: cli.ModelConfig = None,
    experts: cli.Experts = None,
    ranks: cli.Ranks = None,
    allow_partial: cli.AllowPartial = False,
    map_history: cli.MapHistory = None,
    as_json: cli.Json = False,
) -> None:
    """Judge any layout with the ruler."""
    read = read_options(model=model, experts=experts, ranks=ranks, allow_partial=allow_partial, map_history=map_history)
    machine, notices = read_topology(topology, gpus=gpus, nodes=nodes)
    loaded = load_demand(inputs, read, gpus=machine.gpus, window_by=window_by, sources=sources)
    judged, found = read_layout(layout, gpus=machine.gpus, experts=loaded.demand.experts, layers=loaded.demand.layers)
    metrics = score(
        judged,
        loaded.demand.require_not_empty(),
        machine,
        dispatch=dispatch,
        capacity_factor=capacity_factor,
    )
    warnings = [notice.to_dict() for notice in (*notices, *loaded.notices, *found)]
    if as_json:
        print_json({"layout_hash": judged.hash, "metrics": metrics.to_dict(), "warnings": warnings})
        return
    title = f"{layout.name}: {judged.slots_per_gpu} slots per GPU, {dispatch}, {metrics.sources} sources"
    print_table(metrics_table({"layout": metrics}, title=title))
    print_table(windows_table(metrics))
    print_notices(warnings)


def print_plan(plan: Plan) -> None:
    """Print the comparison table, the bound and the windows of a plan."""
    nodes = "1 node" if plan.topology.nodes == 1 else f"{plan.topology.nodes} nodes"
    title = (
        f"{plan.slots_per_gpu} slots per GPU, {plan.topology.gpus} GPUs on {nodes}, "
        f"{plan.options.objective}, {plan.options.dispatch}, {plan.metrics.sources} sources"
    )
    rows = {**plan.baselines, OURS: plan.metrics}
    print_table(metrics_table(rows, title=title))
    judged = {name: row.holdout for name, row in rows.items() if row.holdout is not None}
    if judged:
        print_table(metrics_table(judged, title="judged on demand that was kept apart"))
    if len(plan.metrics.windows) > 1:
        print_table(windows_table(plan.metrics))
    print(_verdict(plan))
    print_notices([notice.to_dict() for notice in plan.notices])


def _verdict(plan: Plan) -> str:
    """Say in a few sentences what was reached, what is proven, and what it costs."""
    bound = plan.bound
    proven = [
        f"{name} {number(value)} ({bound.relaxation[name]})"
        for name, value in (
            ("local_gpu", bound.local_gpu),
            ("local_node", bound.local_node),
            ("imbalance", bound.imbalance),
        )
        if value is not None
    ]
    gap = "" if plan.gap is None else f", gap {plan.gap:.2%}"
    seconds = "" if plan.solve_seconds is None else f", solved in {plan.solve_seconds:.2f} s"
    target = plan.options.local_target
    local = "undefined" if plan.local is None else f"{plan.local:.1%}"
    reached = plan.local is not None and plan.local >= target
    return "\n".join(
        (
            f"status {plan.status}{gap}{seconds}",
            f"proven bounds: {'; '.join(proven) or 'none'}",
            f"local share {local}: the target of {target:.0%} is {'reached' if reached else 'missed'}",
            f"moves {plan.moves.moved_slots} slots from the {plan.moves.before} layout",
        )
    )
