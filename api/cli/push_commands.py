"""``moeplan push`` and ``rollback``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli import options as cli
from api.cli.output import print_json, print_line, print_notices
from placement.notice import Notice

if TYPE_CHECKING:
    from profiler.engine.push import PushResult

# The client of engines loads httpx, so each command imports what it needs.

LayersPerChunk = Annotated[
    int | None,
    typer.Option(help="Layers applied between two engine steps; all at once by default.", show_default=False),
]
Pause = Annotated[float, typer.Option("--pause", help="Seconds of serving between two chunks.")]


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
