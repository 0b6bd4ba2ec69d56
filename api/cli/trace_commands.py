"""``moeplan trace info`` and ``moeplan trace import``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import options as cli
from api.cli.here_or_there import on_local_copies
from api.cli.option_groups import flattened
from api.cli.output import TextTable, print_json, print_line, print_notices, print_table, progress_bar
from api.cli.service_flags import OfEngine, ServiceFlags
from api.cli.stored_rows import Most, Reason, engine_id_of, print_rows
from api.loading import read_options
from placement.errors import BadOption
from profiler.inputs import open_inputs, trace_facts
from profiler.writers.parquet import import_trace

if TYPE_CHECKING:
    from api.client.connection import ServiceConnection

TraceId = Annotated[str, typer.Argument(help="Id of a stored recording.", show_default=False)]

app = typer.Typer(help="Recordings: what they hold, and turning them into moeplan traces.")


@app.command()
@flattened
@on_local_copies("inputs")
def info(
    inputs: cli.Inputs,
    model: cli.ModelConfig = None,
    experts: cli.Experts = None,
    ranks: cli.Ranks = None,
    map_history: cli.MapHistory = None,
    *,
    at: ServiceFlags,
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
    out: Annotated[
        Path | None,
        typer.Option(help="moeplan trace to write (.parquet); not needed with --url.", show_default=False),
    ] = None,
    read_with: cli.ReadFlags,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Turn any supported recording into one moeplan trace (Parquet), or store it at a service."""
    connection = at.connection()
    if connection is not None:
        with connection as service:
            _import_there(service, inputs, out, read=asdict(read_with), as_json=as_json)
        return
    if out is None:
        raise BadOption("--out is missing: the moeplan trace to write, like trace.parquet; or store it with --url.")
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


def _import_there(
    service: ServiceConnection, inputs: list[Path], out: Path | None, *, read: Mapping[str, Any], as_json: bool
) -> None:
    from api.client.traces import download, upload

    with progress_bar("importing") as advance:
        traces = upload(service, inputs, read=read, progress=advance)
    if out is not None:
        if len(traces) > 1:
            raise BadOption(f"--out takes one trace, {len(traces)} were stored; fetch each with trace download.")
        download(service, traces[0]["id"], out)
    if as_json:
        print_json({"traces": traces})
        return
    for trace in traces:
        facts = {key: value for key, value in (trace["facts"] or {}).items() if key not in ("name", "warnings")}
        shown = ", ".join(f"{key} {_short(value)}" for key, value in facts.items())
        print_line(f"stored {trace['id']} ({trace['name']}): {shown}")
        print_notices(trace["warnings"])


@app.command("list")
@flattened
def list_(
    *,
    at: ServiceFlags,
    engine: OfEngine = None,
    most: Most = 50,
    as_json: cli.Json = False,
) -> None:
    """List the recordings of a service, newest first."""
    with at.required() as service:
        rows = service.pages("/v1/traces", {"engine_id": engine_id_of(service, engine)}, most=most)
    columns = ("id", "name", "state", "origin", "size_bytes", "kept", "expires_at", "created_at")
    print_rows(rows, columns, title="recordings", as_json=as_json)


@app.command()
@flattened
def download(
    trace_id: TraceId,
    *,
    out: Annotated[Path, typer.Option(help="moeplan trace to write (.parquet).", show_default=False)],
    at: ServiceFlags,
) -> None:
    """Fetch a stored recording as a moeplan trace."""
    from api.client.traces import download as fetch

    with at.required() as service:
        fetch(service, trace_id, out)
    print_line(f"wrote {out}")


@app.command()
@flattened
def keep(
    trace_id: TraceId,
    *,
    release: Annotated[bool, typer.Option("--release", help="Let it expire again.")] = False,
    at: ServiceFlags,
) -> None:
    """Keep a stored recording beyond its time of retention."""
    with at.required() as service:
        found = service.reply(f"/v1/traces/{trace_id}")
        trace = service.patch(f"/v1/traces/{trace_id}", {"kept": not release}, etag=found.etag).json
    print_line(f"{trace['id']} is {'kept' if trace['kept'] else 'not kept; it expires ' + str(trace['expires_at'])}")


@app.command()
@flattened
def remove(trace_id: TraceId, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Remove a stored recording's data now."""
    with at.required() as service:
        service.delete(f"/v1/traces/{trace_id}", {"reason": reason})
    print_line(f"removed {trace_id}")


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
