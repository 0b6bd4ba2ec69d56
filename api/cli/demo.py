"""``moeplan demo``."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.output import TextTable, number, print_line, print_table
from api.cli.plan_output import print_plan


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for trace, plan and report.")] = Path("out/demo"),
    leave: Annotated[
        bool, typer.Option("--exit", help="Stop the service after the summary; else it runs until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the service, where it is free.")] = 8430,
    seed: cli.Seed = 0,
) -> None:
    """Record, plan, push and measure again on the replay engine, by hand and as a service with its dashboard."""
    _loop(folder, seed=seed)
    _service(folder / "service", leave=leave, port=port)


def _service(folder: Path, *, leave: bool, port: int) -> None:
    from api.demo_service import demo_service, wait_for_ctrl_c

    with demo_service(folder, port=port, say=print_line) as running:
        if leave:
            return
        print_line(f"dashboard {running.url}/   description {running.url}/openapi.json")
        print_line(f"the same commands ask it, for example: moeplan decisions list --url {running.url}")
        print_line("Ctrl-C stops service and engine")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            wait_for_ctrl_c()
    print_line("stopped")


def _loop(folder: Path, *, seed: int) -> None:
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
