"""``moeplan diff``, ``export`` and ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.output import TextTable, print_json, print_line, print_notices, print_table
from api.loading import read_model, read_topology
from api.report import render_report
from placement.diff import diff as diff_layouts
from profiler.files import write_text
from profiler.formats import EXPORTERS, export_layout, read_layout
from profiler.plan_file import read_plan

PlanFile = Annotated[Path, typer.Argument(help="Plan written by moeplan plan.", show_default=False)]


def diff(
    layout_a: Annotated[
        Path, typer.Argument(help="Layout before: moeplan plan or an engine's layout file.", show_default=False)
    ],
    layout_b: Annotated[
        Path, typer.Argument(help="Layout after: moeplan plan or an engine's layout file.", show_default=False)
    ],
    gpus: cli.Gpus,
    nodes: cli.Nodes = 1,
    experts: cli.Experts = None,
    expert_bytes: Annotated[
        int | None,
        typer.Option(help="Bytes of one expert's weights in one layer; adds the bytes moved.", show_default=False),
    ] = None,
    relabel_gpus: Annotated[
        bool,
        typer.Option(
            "--relabel-gpus", help="Count the moves after the renumbering of GPUs that moves least; --json says which."
        ),
    ] = False,
    model: cli.ModelConfig = None,
    as_json: cli.Json = False,
) -> None:
    """Say which slots change their expert between two layouts, and what moving them costs."""
    topology, notices = read_topology(None, gpus=gpus, nodes=nodes)
    shape = None if model is None else read_model(model)
    before, found_a = read_layout(layout_a, gpus=gpus, experts=experts, model=shape)
    after, found_b = read_layout(layout_b, gpus=gpus, experts=experts or before.experts, model=shape)
    difference = diff_layouts(before, after, topology, expert_bytes=expert_bytes, relabel_gpus=relabel_gpus)
    warnings = [notice.to_dict() for notice in (*notices, *found_a, *found_b)]
    if as_json:
        print_json({**difference.to_dict(), "warnings": warnings})
        return
    table = TextTable("gpu", "slots received", "slots sent", title=f"{layout_a.name} -> {layout_b.name}")
    for gpu, (received, sent) in enumerate(zip(difference.received_G, difference.sent_G, strict=True)):
        table.add_row(str(gpu), str(received), str(sent))
    print_table(table)
    size = "" if difference.moved_bytes is None else f", {difference.moved_bytes} bytes"
    print(f"{difference.moved_slots} of {before.layers * before.slots} slots move{size}")
    print_notices(warnings)


def export(
    plan: PlanFile,
    out: Annotated[
        Path,
        typer.Option(
            help="File to write: .json for sglang and vllm-ascend, .jsonl for vllm, .yaml for tensorrt-llm.",
            show_default=False,
        ),
    ],
    format: Annotated[
        str, typer.Option("--format", help=f"The engine whose format it is: {', '.join(EXPORTERS)}.")
    ] = "sglang",
    model: cli.ModelConfig = None,
) -> None:
    """Write a plan's layout as the file that an engine loads at start; all but sglang need --model."""
    shape = None if model is None else read_model(model)
    notices = export_layout(read_plan(plan).layout, format=format, out=out, model=shape)
    print_line(f"wrote {out}")
    print_notices([notice.to_dict() for notice in notices])


def report(
    plan: PlanFile,
    out: Annotated[Path, typer.Option(help="HTML file to write.", show_default=False)],
) -> None:
    """Write one self-contained HTML page about a plan."""
    write_text(out, render_report(read_plan(plan)))
    print_line(f"wrote {out}")
