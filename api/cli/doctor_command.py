"""``moeplan doctor``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli import options as cli
from api.cli.exit_codes import NOT_READY
from api.cli.output import TextTable, print_json, print_line, print_table
from placement.layout import Layout
from profiler.formats import read_layout

if TYPE_CHECKING:
    from profiler.engine.doctor import Diagnosis

TITLES = {
    "capture": "capture",
    "capture_dumps": "capture --dump-dir",
    "sample": "sample",
    "push": "push",
    "layout_at_start": "layout at start",
    "locality": "locality",
    "version": "engine",
    "keys": "keys",
    "plugin": "plugin",
    "recorder": "recorder",
    "dispatch": "dispatch",
    "balancer": "balancer",
    "layout": "runs the layout",
}
"""Names of checks for people."""


def doctor(
    engine: cli.Url,
    layout: Annotated[
        Path | None,
        typer.Option(help="moeplan plan or SGLang JSON that the engine shall run; says whether.", show_default=False),
    ] = None,
    key: cli.EngineKey = None,
    read_key: cli.EngineReadKey = None,
    as_json: cli.Json = False,
) -> None:
    """Say what works on an engine, what does not, and the flag to add; exit code 5 when recording or push does not."""
    from profiler.engine.doctor import examine

    wanted = None if layout is None else partial(_layout, layout)
    diagnosis = examine(engine, key=key, read_key=read_key, layout=wanted)
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        _print(diagnosis)
    if not diagnosis.ready:
        raise typer.Exit(NOT_READY)


def _layout(path: Path, gpus: int | None) -> Layout:
    return read_layout(path, gpus=gpus)[0]


def _print(diagnosis: Diagnosis) -> None:
    title = f"{diagnosis.url}{' (simulated)' if diagnosis.simulated else ''}"
    table = TextTable("", "", "found", "to do", title=title)
    for check in diagnosis.checks:
        remedy = "" if check.state == "works" and not check.remedy.startswith("moeplan ") else check.remedy
        table.add_row(TITLES[check.name], check.state, check.detail, remedy)
    print_table(table)
    print_line("ready to record and push" if diagnosis.ready else "not ready: see what is missing above")
