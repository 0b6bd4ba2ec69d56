"""``moeplan plan``, ``compare`` and ``evaluate``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.exit_codes import TARGET_MISSED
from api.cli.here_or_there import make_plan, on_local_copies
from api.cli.option_groups import flattened
from api.cli.output import (
    capacity_table,
    metrics_table,
    print_json,
    print_line,
    print_notices,
    print_table,
    progress_bar,
    windows_table,
)
from api.cli.plan_options import DispatchRule, Hardware, PlanFlags, StepPhase, StepTokens
from api.cli.plan_output import print_plan, times_table
from api.cli.service_flags import ForEngine, ServiceFlags
from api.loading import load_demand, read_topology
from api.planning import plans_by_window
from api.step_option import TimeOptions, step_of
from api.time_words import time_sentences_of
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.score import score, score_tokens, traced_moe_layer_time
from placement.solution import Status
from profiler.formats import read_layout
from profiler.plan_file import write_plan


@flattened
def plan(
    inputs: cli.Inputs,
    *,
    asked: PlanFlags,
    out: Annotated[Path, typer.Option(help="Plan to write (.json).", show_default=False)],
    per_window: Annotated[
        bool, typer.Option("--per-window", help="A plan for every window (phase, task, time slice): OUT.<window>.json.")
    ] = False,
    read_with: cli.ReadFlags,
    at: ServiceFlags,
    for_engine: ForEngine = None,
    as_json: cli.Json = False,
) -> None:
    """Plan a layout from recordings, with its proven bound and the baselines beside it."""
    if out.suffix != ".json":
        raise BadOption(f"--out is {out.name}; a plan is JSON, so write {out.stem or 'plan'}.json.")
    if per_window and at.url is not None:
        raise BadOption("--per-window plans here alone; leave --url (MOEPLAN_URL) out.")
    stored: list[str] = []
    with progress_bar("planning") as advance:
        if per_window:
            by_window = plans_by_window(inputs, read_with.options(), asked.request(), progress=advance)
            made = dict(zip(_files_by_window(out, list(by_window)), by_window.values(), strict=True))
        else:
            one = make_plan(
                inputs, asked, read_with, at=at, for_engine=for_engine, progress=advance, on_stored=stored.append
            )
            made = {out: one}
    for path, one in made.items():
        write_plan(one, path)
    if as_json:
        summaries = [one.summary() for one in made.values()]
        kept = {"plan_id": stored[0]} if stored else {}
        print_json({"plans": summaries} if per_window else {**summaries[0], **kept})
    else:
        for path, one in made.items():
            print_plan(one)
            print_line(f"wrote {path}")
        for plan_id in stored:
            print_line(f"the service keeps it as {plan_id}; let it be pushed: moeplan plans approve {plan_id}")
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


@flattened
def compare(
    inputs: cli.Inputs,
    *,
    asked: PlanFlags,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="A recording to judge on (repeat for more); planned is on INPUTS alone.", show_default=False),
    ] = None,
    read_with: cli.ReadFlags,
    at: ServiceFlags,
    for_engine: ForEngine = None,
    as_json: cli.Json = False,
) -> None:
    """Compare trivial, random, eplb and hot-replication with our plan: same slots, same ruler, one run."""
    judged_on = tuple(test or ())
    with progress_bar("planning") as advance:
        made = make_plan(inputs, asked, read_with, at=at, for_engine=for_engine, test=judged_on, progress=advance)
    if as_json:
        print_json(made.summary())
    else:
        print_plan(made)
    if made.status is Status.TARGET_MISSED:
        raise typer.Exit(TARGET_MISSED)


@flattened
@on_local_copies("layout", "inputs")
def evaluate(
    layout: Annotated[Path, typer.Argument(help="moeplan plan or an engine's layout file.", show_default=False)],
    inputs: cli.Inputs,
    *,
    gpus: cli.Gpus,
    nodes: cli.Nodes = 1,
    topology: cli.TopologyFile = None,
    dispatch: DispatchRule = Dispatch.NEAREST_DYNAMIC,
    window_by: cli.WindowByText = "file",
    sources: cli.SourcesMode = "auto",
    capacity_factor: cli.CapacityFactor = 1.25,
    sample_tokens: cli.SampleTokens = None,
    hardware: Hardware = None,
    step_phase: StepPhase = None,
    step_tokens: StepTokens = None,
    seed: cli.Seed = 0,
    read_with: cli.ReadFlags,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Judge any layout with the ruler."""
    read = read_with.options()
    step = step_of(TimeOptions(hardware=hardware, step_phase=step_phase, step_tokens=step_tokens), read)
    machine, notices = read_topology(topology, gpus=gpus, nodes=nodes)
    loaded = load_demand(inputs, read, gpus=machine.gpus, window_by=window_by, sources=sources)
    judged, found = read_layout(
        layout,
        gpus=machine.gpus,
        experts=loaded.demand.experts,
        layers=loaded.demand.layers,
        model=read.model,
    )
    metrics = score(
        judged,
        loaded.demand.require_not_empty(),
        machine,
        dispatch=dispatch,
        capacity_factor=capacity_factor,
    )
    if loaded.tokens is not None:
        found_of = score_tokens(
            {"layout": judged},
            loaded.tokens,
            machine,
            dispatch=dispatch,
            sample_tokens=sample_tokens,
            seed=seed,
            capacity_factor=capacity_factor,
        )
        metrics = metrics.with_tokens(found_of["layout"]) if found_of else metrics
    if step is not None:
        # A sample tells copies of all windows together, not of each, so times are then expected from counts.
        stream = loaded.tokens if sample_tokens is None else None
        time = traced_moe_layer_time(judged, loaded.demand, machine, dispatch=dispatch, step=step, stream=stream)
        metrics = metrics.with_time(time)
    warnings = [notice.to_dict() for notice in (*notices, *loaded.notices, *found)]
    if as_json:
        print_json({"layout_hash": judged.hash, "metrics": metrics.to_dict(), "warnings": warnings})
        return
    title = f"{layout.name}: {judged.slots_per_gpu} slots per GPU, {dispatch}, {metrics.sources} sources"
    print_table(metrics_table({"layout": metrics}, title=title))
    print_table(windows_table(metrics))
    print_table(capacity_table({"layout": metrics}))
    if metrics.moe_layer is not None:
        print_table(times_table({"layout": metrics.moe_layer}))
        for sentence in time_sentences_of(metrics.moe_layer):
            print_line(f"time: {sentence}")
    print_notices(warnings)
