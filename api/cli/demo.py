"""``moeplan demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.output import TextTable, number, print_line, print_table
from api.cli.plan_output import print_plan


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for trace, plan and report.")] = Path("out/demo"),
    leave: Annotated[bool, typer.Option("--exit", help="Stop the engine and leave when done (the default).")] = True,
    seed: cli.Seed = 0,
) -> None:
    """Record, plan, push and measure again on the replay engine, with a real recording that moeplan ships."""
    from api.demo import run_demo

    result = run_demo(folder, seed=seed, say=print_line)
    print_plan(result.plan)
    table = TextTable(
        "",
        "local_gpu",
        "imbalance",
        "gpus_per_token",
        "tokens counted",
        title="dispatched token by token in the replay engine (simulated) and predicted by the ruler",
    )
    for name, measured in (("measured before the push", result.before), ("measured after the push", result.after)):
        table.add_row(
            name,
            number(measured.local_gpu),
            number(measured.imbalance),
            number(measured.gpus_per_token),
            str(measured.tokens),
        )
    planned = result.plan.metrics
    table.add_row("predicted for the plan", number(planned.local_gpu), number(planned.imbalance), "-", "")
    print_table(table)
    print_line(result.pushed.sentence())
    print_line(f"trace  {result.trace_file.resolve()}")
    print_line(f"plan   {result.plan_file.resolve()}")
    print_line(f"report {result.report_file.resolve()}")
