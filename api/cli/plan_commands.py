"""``moeplan plan``, ``compare`` and ``evaluate``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from api.cli import options as cli
from api.cli.exit_codes import TARGET_MISSED
from api.cli.output import (
    metrics_table,
    print_json,
    print_line,
    print_notices,
    print_table,
    progress_bar,
    windows_table,
)
from api.cli.plan_output import print_plan
from api.loading import load_demand, read_options, read_topology
from api.planning import PlanRequest, plan_from_files, plans_by_window
from api.workers import parse_workers
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Objective
from placement.score import score
from placement.solution import Status
from profiler.formats import read_layout
from profiler.plan_file import write_plan

Scope = Annotated[LocalScope, typer.Option(help="Where a token counts as local: on its home GPU or its home node.")]
ObjectiveName = Annotated[
    Objective,
    typer.Option(help="locality: most local share under --max-imbalance. balance: smallest worst-window imbalance."),
]
DispatchRule = Annotated[
    Dispatch,
    typer.Option(
        help="How the engine picks a replica. nearest-dynamic, nearest-static: --ep-dispatch-algorithm with an "
        "all-to-all backend; even: without one."
    ),
]
SlotsPerGpu = Annotated[
    int | None,
    typer.Option(
        help="Slots per GPU in every layer; without it, --redundant and --fit: as few as hold all experts.",
        show_default=False,
    ),
]
Redundant = Annotated[
    int | None,
    typer.Option(
        help="Redundant slots of a layer, over all GPUs (SGLang's --ep-num-redundant-experts).", show_default=False
    ),
]
Fit = Annotated[bool, typer.Option("--fit", help="Find the fewest slots per GPU that reach --local-target.")]
LocalTarget = Annotated[
    float | None,
    typer.Option(
        help="Wanted local share, above 0, up to 1. Missed: exit code 4. "
        "Without it 0.6 is the target and missing it is no failure.",
        show_default=False,
    ),
]
MaxImbalance = Annotated[
    float, typer.Option(help="Largest imbalance (largest GPU load / mean GPU load) that any window may have.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        help="Wall-clock seconds for the solver; no limit without it. Plans that it cut short can differ between runs.",
        show_default=False,
    ),
]
Threads = Annotated[int, typer.Option(help="Layers that the exact solver works on at a time.")]
WorkersText = Annotated[
    str,
    typer.Option(
        "--workers",
        help="Who searches layers: 1 for this process, N for N processes beside it, ray for the machines of a Ray "
        "cluster (extra moeplan[ray]; RAY_ADDRESS or this machine's). The plan is the same; worth it for large ones.",
    ),
]
Groups = Annotated[
    int | None,
    typer.Option(
        "--expert-groups",
        help="Router groups (n_group in config.json), for the hierarchical form of the EPLB baseline.",
        show_default=False,
    ),
]
Holdout = Annotated[
    float | None,
    typer.Option(
        help="Share, 0..1, of the last requests (of counts: windows) that is not planned on but judged on.",
        show_default=False,
    ),
]
Current = Annotated[
    Path | None,
    typer.Option(
        help="Layout that runs now (plan or SGLang JSON): moves are counted from it, ties go to fewer moves.",
        show_default=False,
    ),
]
ExpertBytes = Annotated[
    int | None, typer.Option(help="Bytes of one expert's weights in one layer, for moved_bytes.", show_default=False)
]
MaxMovedSlots = Annotated[
    int | None,
    typer.Option(
        help="Slots that may be filled from another GPU on the way from --current (without it: from the trivial "
        "layout, with which engines start).",
        show_default=False,
    ),
]
MaxMovedBytes = Annotated[
    int | None, typer.Option(help="The same limit in bytes of weights; needs --expert-bytes.", show_default=False)
]
Pareto = Annotated[
    bool,
    typer.Option(
        "--pareto", help="Also plan within 0, 5, 10, 25, 50 and 100 % of the free plan's moves: gain against moves."
    ),
]
DraftExperts = Annotated[
    int | None,
    typer.Option(help="Experts of the draft (MTP) model: checks that its slots divide too.", show_default=False),
]
DraftRedundant = Annotated[
    int | None,
    typer.Option(help="Redundant slots of the draft model (default: those of the plan).", show_default=False),
]
Phase = Annotated[
    Literal["prefill", "decode"] | None, typer.Option(help="Use only this phase's traffic.", show_default=False)
]
PerWindow = Annotated[
    bool, typer.Option("--per-window", help="A plan for every window (phase, task, time slice): OUT.<window>.json.")
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
    local_scope: Scope = LocalScope.GPU,
    objective: ObjectiveName = Objective.LOCALITY,
    max_imbalance: MaxImbalance = 1.05,
    dispatch: DispatchRule = Dispatch.NEAREST_DYNAMIC,
    window_by: cli.WindowByText = "file",
    sources: cli.SourcesMode = "auto",
    phase: Phase = None,
    holdout: Holdout = None,
    current: Current = None,
    capacity_factor: cli.CapacityFactor = 1.25,
    expert_groups: Groups = None,
    expert_bytes: ExpertBytes = None,
    max_moved_slots: MaxMovedSlots = None,
    max_moved_bytes: MaxMovedBytes = None,
    pareto: Pareto = False,
    draft_experts: DraftExperts = None,
    draft_redundant: DraftRedundant = None,
    live_gpus: LiveGpus = None,
    per_window: PerWindow = False,
    model: cli.ModelConfig = None,
    experts: cli.Experts = None,
    ranks: cli.Ranks = None,
    allow_partial: cli.AllowPartial = False,
    map_history: cli.MapHistory = None,
    time_limit: TimeLimit = None,
    seed: cli.Seed = 0,
    threads: Threads = 1,
    workers: WorkersText = "1",
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
        phase=phase,
        holdout=holdout,
        current=current,
        capacity_factor=capacity_factor,
        expert_groups=expert_groups,
        expert_bytes=expert_bytes,
        max_moved_slots=max_moved_slots,
        max_moved_bytes=max_moved_bytes,
        pareto=pareto,
        draft_experts=draft_experts,
        draft_redundant=draft_redundant,
        live_gpus=live_gpus,
        time_limit_s=time_limit,
        seed=seed,
        threads=threads,
        workers=parse_workers(workers),
    )
    read = read_options(model=model, experts=experts, ranks=ranks, allow_partial=allow_partial, map_history=map_history)
    with progress_bar("planning") as advance:
        if per_window:
            by_window = plans_by_window(inputs, read, request, progress=advance)
            made = dict(zip(_files_by_window(out, list(by_window)), by_window.values(), strict=True))
        else:
            made = {out: plan_from_files(inputs, read, request, progress=advance)}
    for path, one in made.items():
        write_plan(one, path)
    if as_json:
        summaries = [one.summary() for one in made.values()]
        print_json({"plans": summaries} if per_window else summaries[0])
    else:
        for path, one in made.items():
            print_plan(one)
            print_line(f"wrote {path}")
    if any(one.status is Status.TARGET_MISSED for one in made.values()):
        raise typer.Exit(TARGET_MISSED)


def _files_by_window(out: Path, windows: list[str]) -> list[Path]:
    """Name a file per window after it; what a file name cannot hold becomes a dash, equal names get a number."""
    files: list[Path] = []
    for index, window in enumerate(windows):
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", window).strip("-")[:80] or "window"
        file = out.with_name(f"{out.stem}.{name}{out.suffix}")
        files.append(file if file not in files else out.with_name(f"{out.stem}.{name}-{index}{out.suffix}"))
    return files


def compare(
    inputs: cli.Inputs,
    gpus: cli.Gpus,
    nodes: cli.Nodes = 1,
    topology: cli.TopologyFile = None,
    slots_per_gpu: SlotsPerGpu = None,
    redundant: Redundant = None,
    fit: Fit = False,
    local_target: LocalTarget = None,
    local_scope: Scope = LocalScope.GPU,
    objective: ObjectiveName = Objective.LOCALITY,
    max_imbalance: MaxImbalance = 1.05,
    dispatch: DispatchRule = Dispatch.NEAREST_DYNAMIC,
    window_by: cli.WindowByText = "file",
    sources: cli.SourcesMode = "auto",
    phase: Phase = None,
    holdout: Holdout = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="A recording to judge on (repeat for more); planned is on INPUTS alone.", show_default=False),
    ] = None,
    current: Current = None,
    capacity_factor: cli.CapacityFactor = 1.25,
    expert_groups: Groups = None,
    expert_bytes: ExpertBytes = None,
    max_moved_slots: MaxMovedSlots = None,
    max_moved_bytes: MaxMovedBytes = None,
    pareto: Pareto = False,
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
    workers: WorkersText = "1",
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
        phase=phase,
        holdout=holdout,
        test=tuple(test or ()),
        current=current,
        capacity_factor=capacity_factor,
        expert_groups=expert_groups,
        expert_bytes=expert_bytes,
        max_moved_slots=max_moved_slots,
        max_moved_bytes=max_moved_bytes,
        pareto=pareto,
        draft_experts=draft_experts,
        draft_redundant=draft_redundant,
        live_gpus=live_gpus,
        time_limit_s=time_limit,
        seed=seed,
        threads=threads,
        workers=parse_workers(workers),
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
    dispatch: DispatchRule = Dispatch.NEAREST_DYNAMIC,
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
