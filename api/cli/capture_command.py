"""``moeplan capture``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.output import print_json, print_line, print_notices, progress_bar
from api.cli.service_flags import ServiceFlags
from api.loading import read_options
from placement.errors import BadOption
from profiler.files import require_writable

if TYPE_CHECKING:
    from api.client.connection import ServiceConnection
    from profiler.engine.client import EngineClient

# The client of engines loads httpx, so the command imports what it needs.


@flattened
def capture(
    engine: cli.Url,
    out: Annotated[
        Path | None,
        typer.Option(help="moeplan trace to write (.parquet); not needed with --url.", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds to record; give this or --steps.", show_default=False)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Engine steps to record; give this or --seconds.", show_default=False)
    ] = None,
    window_steps: Annotated[
        int | None, typer.Option(help="Engine steps per window (default: 100).", show_default=False)
    ] = None,
    dump_dir: Annotated[
        Path | None,
        typer.Option(
            help="Record with SGLang's own recorder, without the plugin: the folder of its dumps, as seen from here.",
            show_default=False,
        ),
    ] = None,
    model: cli.ModelConfig = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the recording from whoever holds it; theirs ends.")
    ] = False,
    key: cli.EngineKey = None,
    read_key: cli.EngineReadKey = None,
    *,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Record from a live engine and write a moeplan trace: by source GPU, or from the engine's own dumps."""
    connection = at.connection()
    if connection is not None:
        if dump_dir is not None or take_over or model is not None:
            raise BadOption("--dump-dir, --model and --take-over are for recording from here, without --url.")
        limits = {"seconds": seconds, "steps": steps, "window_steps": window_steps}
        with connection as service:
            _there(service, engine, limits, out=out, as_json=as_json)
        return
    if out is None:
        raise BadOption("--out is missing: the moeplan trace to write, like trace.parquet; or store it with --url.")
    from profiler.engine.client import EngineClient

    require_writable(out)
    with EngineClient(engine, key, read_key=read_key) as client:
        if dump_dir is None:
            result, warnings = _by_plugin(
                client, out, seconds=seconds, steps=steps, window_steps=window_steps, take_over=take_over
            )
        else:
            _refuse_with_dumps(steps=steps, window_steps=window_steps)
            result, warnings = _by_dumps(client, out, dump_dir, seconds=seconds, model=model, take_over=take_over)
    if as_json:
        print_json({**result, "warnings": warnings})
        return
    print_line(result["sentence"])
    print_notices(warnings)


def _there(
    service: ServiceConnection, engine: str, limits: dict[str, int | float | None], *, out: Path | None, as_json: bool
) -> None:
    """Let a service record, and fetch the trace where a file was asked for."""
    from api.client.names import engine_named
    from api.client.traces import capture as record
    from api.client.traces import download

    if out is not None:
        require_writable(out)
    engine_id = engine_named(service, engine)["id"]
    with progress_bar("recording") as advance:
        trace = record(service, engine_id=engine_id, limits=limits, progress=advance)
    if out is not None:
        download(service, trace["id"], out)
    if as_json:
        print_json(trace)
        return
    simulated = " (simulated)" if (trace["facts"] or {}).get("simulated") else ""
    print_line(f"stored {trace['id']} ({trace['name']}){simulated}{'' if out is None else f', wrote {out}'}")
    print_notices(trace["warnings"])


def _by_plugin(
    client: EngineClient,
    out: Path,
    *,
    seconds: float | None,
    steps: int | None,
    window_steps: int | None,
    take_over: bool,
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    from profiler.engine.capture import capture as record
    from profiler.writers.parquet import import_trace

    recorded = record(client, seconds=seconds, steps=steps, window_steps=window_steps, take_over=take_over)
    facts = import_trace([recorded], out)
    windows = len(recorded.windows)
    simulated = " (simulated)" if recorded.simulated else ""
    return {
        **facts,
        "out": str(out),
        "steps": recorded.steps,
        "tokens": recorded.tokens,
        "simulated": recorded.simulated,
        "sentence": f"wrote {out}: {recorded.steps} steps, {recorded.tokens} tokens, "
        f"{windows} window{'' if windows == 1 else 's'}{simulated}",
    }, [notice.to_dict() for notice in (*recorded.notices, *client.protection_notices())]


def _by_dumps(
    client: EngineClient, out: Path, dump_dir: Path, *, seconds: float | None, model: Path | None, take_over: bool
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    from profiler.engine.dump_capture import capture_dumps
    from profiler.writers.parquet import import_trace

    options = read_options(model=model)
    recorded = capture_dumps(client, dump_dir, seconds=seconds, options=options, take_over=take_over)
    facts = import_trace([recorded], out)
    files = len(recorded.files)
    simulated = " (simulated)" if recorded.facts.simulated else ""
    return {
        **facts,
        "out": str(out),
        "files": [str(path) for path in recorded.files],
        "simulated": recorded.facts.simulated,
        "sentence": f"wrote {out} from {recorded.files[0]}{f' and {files - 1} more' if files > 1 else ''}{simulated}",
    }, [notice.to_dict() for notice in dict.fromkeys(recorded.notices)]


def _refuse_with_dumps(**by_steps: int | None) -> None:
    for name, value in by_steps.items():
        if value is not None:
            raise BadOption(f"--{name.replace('_', '-')} needs the plugin; SGLang's own recorder counts no steps.")
