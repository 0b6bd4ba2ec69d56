"""``moeplan replay``, ``capture``, ``push`` and ``rollback``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from api.cli import options as cli
from api.cli.output import print_json, print_line, print_notices
from api.loading import read_options
from placement.notice import Notice
from profiler.inputs import open_inputs

if TYPE_CHECKING:
    from profiler.engine.push import PushResult

# The engine and replay modules load FastAPI, uvicorn and httpx, so each command imports what it needs.

LayersPerChunk = Annotated[
    int | None,
    typer.Option(help="Layers applied between two engine steps; all at once by default.", show_default=False),
]
Pause = Annotated[float, typer.Option("--pause", help="Seconds of serving between two chunks.")]


def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            help="Recording of tokens, not counts: .npz token trace, per_token .pt dump or moeplan Parquet.",
            show_default=False,
        ),
    ],
    gpus: cli.Gpus,
    slots_per_gpu: Annotated[int, typer.Option(help="Slots per GPU.", show_default=False)],
    port: Annotated[int, typer.Option(help="Port on the loopback; 0 takes a free one.")] = 0,
    nodes: cli.Nodes = 1,
    dispatch: Annotated[
        Literal["dynamic", "static", "none"], typer.Option(help="The engine's --ep-dispatch-algorithm.")
    ] = "dynamic",
    a2a: Annotated[str, typer.Option(help="All-to-all backend; none: every rank sees every token.")] = "deepep",
    homes: Annotated[
        Literal["measured", "round-robin", "domain"] | None,
        typer.Option(help="Home GPUs of requests; measured where the trace has them.", show_default=False),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(help="Engine steps per second; as fast as one core can when left out.", show_default=False),
    ] = None,
    seed: cli.Seed = 0,
    key: cli.EngineKey = None,
) -> None:
    """Serve a recorded token trace as an SGLang engine with the plugin would (simulated: no model is run)."""
    from profiler.replay import serve_replay

    (reader,) = open_inputs([trace], read_options())
    serve_replay(
        reader,
        gpus=gpus,
        nodes=nodes,
        slots_per_gpu=slots_per_gpu,
        port=port,
        dispatch=None if dispatch == "none" else dispatch,
        a2a=a2a,
        homes=homes,
        steps_per_s=speed,
        seed=seed,
        admin_key=key,
        on_ready=lambda url: print(f"replay engine (simulated) on {url}; Ctrl-C stops it", flush=True),
    )


def capture(
    engine: cli.Url,
    out: Annotated[Path, typer.Option(help="moeplan trace to write (.parquet).", show_default=False)],
    seconds: Annotated[
        float | None, typer.Option(help="Seconds to record; give this or --steps.", show_default=False)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Engine steps to record; give this or --seconds.", show_default=False)
    ] = None,
    window_steps: Annotated[
        int | None, typer.Option(help="Engine steps per window (default: 100).", show_default=False)
    ] = None,
    key: cli.EngineKey = None,
    as_json: cli.Json = False,
) -> None:
    """Record from a live engine, by source GPU, and write a moeplan trace."""
    from profiler.engine.capture import capture as record
    from profiler.engine.client import EngineClient
    from profiler.writers.parquet import import_trace

    with EngineClient(engine, key) as client:
        recorded = record(client, seconds=seconds, steps=steps, window_steps=window_steps)
    facts = import_trace([recorded], out)
    result: dict[str, Any] = {
        **facts,
        "out": str(out),
        "steps": recorded.steps,
        "tokens": recorded.tokens,
        "simulated": recorded.simulated,
    }
    if as_json:
        print_json(result)
        return
    print_line(
        f"wrote {out}: {recorded.steps} steps, {recorded.tokens} tokens, "
        f"{len(recorded.windows)} window{'' if len(recorded.windows) == 1 else 's'}"
        f"{' (simulated)' if recorded.simulated else ''}"
    )
    print_notices([notice.to_dict() for notice in recorded.notices])


def push(
    layout: Annotated[Path, typer.Argument(help="moeplan plan or SGLang JSON layout.", show_default=False)],
    engine: cli.Url,
    expected_hash: Annotated[
        str | None,
        typer.Option(
            help="Hash of the layout that the engine must run now; else nothing is pushed.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask what would move; nothing moves.")] = False,
    layers_per_chunk: LayersPerChunk = None,
    pause: Pause = 0.0,
    key: cli.EngineKey = None,
    as_json: cli.Json = False,
) -> None:
    """Push a layout into a running engine and verify it by reading the engine."""
    from profiler.engine.client import EngineClient
    from profiler.engine.history import LayoutHistory
    from profiler.engine.push import push as push_layout
    from profiler.formats import read_layout

    with EngineClient(engine, key) as client:
        placement = client.placement()
        chosen, notices = read_layout(layout, gpus=placement.ep_size, experts=placement.experts)
        pushed = push_layout(
            client,
            chosen,
            history=LayoutHistory.of_user(),
            expected_hash=expected_hash,
            dry_run=dry_run,
            layers_per_chunk=layers_per_chunk,
            pause_s=pause,
        )
    _print_push(pushed, notices, as_json=as_json)


def rollback(
    engine: cli.Url,
    to: Annotated[
        str | None,
        typer.Option(help="Hash of the layout to go back to; the one before by default.", show_default=False),
    ] = None,
    layers_per_chunk: LayersPerChunk = None,
    pause: Pause = 0.0,
    key: cli.EngineKey = None,
    as_json: cli.Json = False,
) -> None:
    """Push back a layout that the engine ran before."""
    from profiler.engine.client import EngineClient
    from profiler.engine.history import LayoutHistory
    from profiler.engine.rollback import rollback as roll_back

    with EngineClient(engine, key) as client:
        pushed = roll_back(
            client, history=LayoutHistory.of_user(), to_hash=to, layers_per_chunk=layers_per_chunk, pause_s=pause
        )
    _print_push(pushed, [], as_json=as_json)


def _print_push(pushed: PushResult, notices: list[Notice], *, as_json: bool) -> None:
    warnings = [notice.to_dict() for notice in (*notices, *pushed.notices)]
    if as_json:
        print_json({**pushed.to_dict(), "warnings": warnings})
        return
    print_line(pushed.sentence())
    print_notices(warnings)
