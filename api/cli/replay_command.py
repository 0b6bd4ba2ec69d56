"""``moeplan replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from api.cli import options as cli
from api.loading import read_options
from profiler.inputs import open_inputs

# The replay engine loads FastAPI and uvicorn, so the command imports it late.


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
