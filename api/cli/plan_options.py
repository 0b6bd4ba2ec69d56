"""The options of ``moeplan plan`` and ``compare``, declared once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from api.cli import options as cli
from api.plan_request import PlanRequest
from api.workers import parse_workers
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Objective

Scope = Annotated[LocalScope, typer.Option(help="Where a token counts as local: on its home GPU or its home node.")]
ObjectiveName = Annotated[
    Objective,
    typer.Option(
        help="locality: most local share under --max-imbalance. balance: smallest worst-window imbalance. traffic: "
        "fewest copies per token under --max-imbalance (needs token traces). "
        "step-time: least predicted time of a MoE layer (needs --hardware and --model)."
    ),
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
MaxOverflow = Annotated[
    float | None,
    typer.Option(
        help="Largest share of its demand, 0..1, that any window may have above --capacity-factor x mean GPU load.",
        show_default=False,
    ),
]
Hedge = Annotated[
    float | None,
    typer.Option(
        help="Part of the local share that may be given up for replica counts that keep GPUs even on traffic that "
        "was not planned for, 0 up to but not 1. 0.005 for several windows and 0 for one without it.",
        show_default=False,
    ),
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
Hardware = Annotated[
    str | None,
    typer.Option(
        help="Predict the time of a MoE layer with this profile: h100, h200, h20, b200, or a file that moeplan "
        "calibrate wrote. Needs --model.",
        show_default=False,
    ),
]
StepPhase = Annotated[
    Literal["prefill", "decode"] | None,
    typer.Option(help="Whose kernels the time is predicted for; without it --phase, else prefill.", show_default=False),
]
StepTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens of a step per GPU, for the predicted time (default: 8192 in prefill, 128 in decode).",
        show_default=False,
    ),
]
LiveGpus = Annotated[
    str | None, typer.Option(help="Plan for the GPUs left after failures, like 0,1,3.", show_default=False)
]


@dataclass(frozen=True, kw_only=True)
class SharedFlags:
    """What plans and sizes are both asked with."""

    gpus: cli.Gpus
    nodes: cli.Nodes = 1
    topology_file: cli.TopologyFile = None
    max_imbalance: MaxImbalance = 1.05
    dispatch: DispatchRule = Dispatch.NEAREST_DYNAMIC
    window_by: cli.WindowByText = "file"
    sources: cli.SourcesMode = "auto"
    phase: Phase = None
    hardware: Hardware = None
    step_phase: StepPhase = None
    step_tokens: StepTokens = None
    seed: cli.Seed = 0

    def given(self) -> dict[str, Any]:
        """Return every field by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class PlanFlags(SharedFlags):
    """What ``plan`` and ``compare`` are asked with; every field is one of :class:`api.plan_request.PlanRequest` too."""

    slots_per_gpu: SlotsPerGpu = None
    redundant: Redundant = None
    fit: Fit = False
    local_target: LocalTarget = None
    local_scope: Scope = LocalScope.GPU
    objective: ObjectiveName = Objective.LOCALITY
    hedge: Hedge = None
    holdout: Holdout = None
    current: Current = None
    capacity_factor: cli.CapacityFactor = 1.25
    sample_tokens: cli.SampleTokens = None
    max_overflow: MaxOverflow = None
    expert_groups: Groups = None
    expert_bytes: ExpertBytes = None
    max_moved_slots: MaxMovedSlots = None
    max_moved_bytes: MaxMovedBytes = None
    pareto: Pareto = False
    draft_experts: DraftExperts = None
    draft_redundant: DraftRedundant = None
    live_gpus: LiveGpus = None
    time_limit_s: TimeLimit = None
    threads: Threads = 1
    workers: WorkersText = "1"

    def request(self, *, test: tuple[Path, ...] = ()) -> PlanRequest:
        """Turn the flags into a request; ``test`` are recordings to judge on."""
        return PlanRequest(**{**self.given(), "workers": parse_workers(self.workers), "test": test})
