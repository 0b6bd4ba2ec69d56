"""``moeplan diff``, ``export`` and ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli import options as cli
from api.cli.here_or_there import on_local_copies
from api.cli.option_groups import flattened
from api.cli.output import TextTable, print_json, print_line, print_notices, print_table
from api.cli.service_flags import ServiceFlags
from api.loading import read_model, read_topology
from api.report import render_report
from placement.diff import diff as diff_layouts
from placement.errors import BadOption
from placement.model_shape import ModelShape
from placement.plan import Plan
from profiler.files import write_text
from profiler.formats import EXPORTERS, export_layout, keep_replaced, read_layout, render_layout
from profiler.plan_file import read_plan

if TYPE_CHECKING:
    from profiler.engine.restart import Restart
    from profiler.engine.server_facts import ServerFacts

# The client of engines loads httpx, so the commands import it late.

PlanFile = Annotated[Path, typer.Argument(help="Plan written by moeplan plan.", show_default=False)]


@flattened
@on_local_copies("layout_a", "layout_b")
def diff(
    layout_a: Annotated[
        Path, typer.Argument(help="Layout before: moeplan plan or an engine's layout file.", show_default=False)
    ],
    layout_b: Annotated[
        Path, typer.Argument(help="Layout after: moeplan plan or an engine's layout file.", show_default=False)
    ],
    gpus: Annotated[
        int | None, typer.Option(help="Number of GPUs; a plan says it by itself.", show_default=False)
    ] = None,
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
    *,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Say which slots change their expert between two layouts, and what moving them costs."""
    shape = None if model is None else read_model(model)
    gpus = _gpus_of([layout_a, layout_b], shape) if gpus is None else gpus
    topology, notices = read_topology(None, gpus=gpus, nodes=nodes)
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


def _gpus_of(layouts: Sequence[Path], shape: ModelShape | None) -> int:
    """Return the number of GPUs that the first of some layout files names by itself."""
    for path in layouts:
        try:
            return read_layout(path, gpus=None, model=shape)[0].gpus
        except BadOption:  # a bare map does not say; everything else that is wrong is raised
            continue
    raise BadOption("neither file says for how many GPUs its layout is; give --gpus.")


@flattened
@on_local_copies("plan")
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
    print_restart: Annotated[
        bool, typer.Option("--print-restart", help="Print the flags and steps of SGLang's restart with the file.")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="URL of an SGLang to compare those flags with.", show_default=False),
    ] = None,
    key: cli.EngineKey = None,
    read_key: cli.EngineReadKey = None,
    *,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Write a plan's layout as the file that an engine loads at start; all formats but sglang need --model."""
    with_restart = print_restart or engine is not None
    if with_restart and format != "sglang":
        raise BadOption(f"flags of a restart are known for sglang only, not for {format}.")
    planned = read_plan(plan)
    shape = None if model is None else read_model(model)
    restart = _restart(planned, out, engine=engine, key=key, read_key=read_key) if with_restart else None
    notices = export_layout(planned.layout, format=format, out=out, model=shape)
    warnings = [notice.to_dict() for notice in (*notices, *(restart.notices if restart is not None else ()))]
    if as_json:
        print_json({"out": str(out), **({} if restart is None else restart.to_dict()), "warnings": warnings})
        return
    print_line(f"wrote {out}")
    if restart is not None:
        _print_restart(restart)
    print_notices(warnings)


def _restart(planned: Plan, out: Path, *, engine: str | None, key: str | None, read_key: str | None) -> Restart:
    from profiler.engine.restart import restart_with

    facts, architectures = (None, ()) if engine is None else _asked(engine, key, read_key)
    restart = restart_with(
        planned.layout,
        out.resolve(),
        dispatch=planned.options.dispatch,
        nodes=planned.topology.nodes,
        facts=facts,
        architectures=architectures,
    )
    kept = keep_replaced(out.resolve(), render_layout(planned.layout, format="sglang", out=out))
    return replace(restart, kept=kept)


def _asked(engine: str, key: str | None, read_key: str | None) -> tuple[ServerFacts, tuple[str, ...]]:
    from profiler.engine.client import EngineClient

    with EngineClient(engine, key, read_key=read_key) as client:
        return client.facts(), client.architectures()


def _print_restart(restart: Restart) -> None:
    table = TextTable("flag", "value", "now", "", title="server arguments")
    for flag in restart.flags:
        to_do = "as it is" if not flag.changes else "change" if flag.now is not None else "set"
        table.add_row(flag.name, flag.value or "remove", flag.now or "-", to_do)
    print_table(table)
    for number, sentence in enumerate(restart.steps, start=1):
        print_line(f"{number}. {sentence}")


@flattened
@on_local_copies("plan")
def report(
    plan: PlanFile,
    out: Annotated[Path, typer.Option(help="HTML file to write.", show_default=False)],
    *,
    at: ServiceFlags,
) -> None:
    """Write one self-contained HTML page about a plan."""
    write_text(out, render_report(read_plan(plan)))
    print_line(f"wrote {out}")
