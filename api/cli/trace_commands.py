"""``moeplan trace info`` and ``moeplan trace import``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.output import TextTable, print_json, print_line, print_notices, print_table, progress_bar
from api.loading import read_options
from profiler.inputs import open_inputs, trace_facts
from profiler.writers.parquet import import_trace

app = typer.Typer(help="Recordings: what they hold, and turning them into moeplan traces.")


@app.command()
def info(
    inputs: cli.Inputs,
    model: cli.ModelConfig = None,
    experts: cli.Experts = None,
    ranks: cli.Ranks = None,
    map_history: cli.MapHistory = None,
    as_json: cli.Json = False,
) -> None:
    """Say what a recording holds, with warnings."""
    options = read_options(model=model, experts=experts, ranks=ranks, allow_partial=True, map_history=map_history)
    readers = open_inputs(inputs, options)
    facts = [trace_facts(reader) for reader in readers]
    if as_json:
        print_json({"inputs": facts})
        return
    for reader, one in zip(readers, facts, strict=True):
        table = TextTable("what", "value", title=reader.name)
        for key, value in one.items():
            if key not in ("name", "warnings"):
                table.add_row(key, _short(value))
        print_table(table)
        print_notices([notice.to_dict() for notice in reader.notices])


@app.command("import")
@flattened
def import_(
    inputs: cli.Inputs,
    *,
    out: Annotated[Path, typer.Option(help="moeplan trace to write (.parquet).", show_default=False)],
    read_with: cli.ReadFlags,
    as_json: cli.Json = False,
) -> None:
    """Turn any supported recording into one moeplan trace (Parquet)."""
    readers = open_inputs(inputs, read_with.options())
    for reader in readers:
        reader.require_complete()
    with progress_bar("importing") as advance:
        facts = import_trace(readers, out, progress=advance)
    if as_json:
        print_json({"out": str(out), **facts})
        return
    print_line(
        f"wrote {out}: " + ", ".join(f"{key} {_short(value)}" for key, value in facts.items() if key != "warnings")
    )
    print_notices([notice.to_dict() for reader in readers for notice in reader.notices])


def _short(value: object) -> str:
    text = _in_words(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _in_words(value: object) -> str:
    if value is None:
        return "not recorded"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_in_words(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_in_words, value))
    return str(value)
