"""``moeplan push`` and ``rollback``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.output import print_json, print_line, print_notices, progress_bar
from api.cli.service_flags import ServiceFlags
from api.cli.stored_rows import Reason
from placement.errors import BadOption
from placement.notice import Notice

if TYPE_CHECKING:
    from api.client.connection import ServiceConnection
    from profiler.engine.push import PushResult

# The client of engines loads httpx, so each command imports what it needs.

LayersPerChunk = Annotated[
    int | None,
    typer.Option(help="Layers applied between two engine steps; all at once by default.", show_default=False),
]
Pause = Annotated[float, typer.Option("--pause", help="Seconds of serving between two chunks.")]


@flattened
def push(
    layout: Annotated[
        Path,
        typer.Argument(help="moeplan plan or SGLang JSON layout; with --url the id of a plan.", show_default=False),
    ],
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
    *,
    at: ServiceFlags,
    measure_seconds: Annotated[
        float | None,
        typer.Option(
            help="With --url: how long traffic is recorded after the push to judge the layout by; 0 not at all (30).",
            show_default=False,
        ),
    ] = None,
    roll_back_margin: Annotated[
        float | None,
        typer.Option(
            help="With --url: the layout before is put back when the new one measures worse by more than this share "
            "(0.05).",
            show_default=False,
        ),
    ] = None,
    reason: Reason = "",
    as_json: cli.Json = False,
) -> None:
    """Push a layout into a running engine and verify it by reading the engine."""
    connection = at.connection()
    if connection is not None:
        _refuse_there(expected_hash=expected_hash)
        with connection as service:
            how = {
                "layers_per_chunk": layers_per_chunk,
                "pause_s": pause or None,
                "measure_seconds": measure_seconds,
                "roll_back_margin": roll_back_margin,
                "reason": reason,
            }
            _push_there(service, str(layout), engine, dry_run=dry_run, how=how, as_json=as_json)
        return
    if measure_seconds is not None or roll_back_margin is not None:
        raise BadOption("--measure-seconds and --roll-back-margin are for pushes by a service: give --url.")
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


@flattened
def rollback(
    engine: cli.Url,
    to: Annotated[
        str | None,
        typer.Option(help="Hash of the layout to go back to; the one before by default.", show_default=False),
    ] = None,
    layers_per_chunk: LayersPerChunk = None,
    pause: Pause = 0.0,
    key: cli.EngineKey = None,
    *,
    at: ServiceFlags,
    reason: Reason = "",
    as_json: cli.Json = False,
) -> None:
    """Push back a layout that the engine ran before."""
    connection = at.connection()
    if connection is not None:
        _refuse_there(layers_per_chunk=layers_per_chunk, pause=pause or None)
        with connection as service:
            _roll_back_there(service, engine, to=to, reason=reason, as_json=as_json)
        return
    from profiler.engine.client import EngineClient
    from profiler.engine.history import LayoutHistory
    from profiler.engine.rollback import rollback as roll_back

    with EngineClient(engine, key) as client:
        pushed = roll_back(
            client, history=LayoutHistory.of_user(), to_hash=to, layers_per_chunk=layers_per_chunk, pause_s=pause
        )
    _print_push(pushed, [], as_json=as_json)


def _push_there(
    service: ServiceConnection,
    plan_id: str,
    engine: str,
    *,
    dry_run: bool,
    how: Mapping[str, Any],
    as_json: bool,
) -> None:
    from api.client.names import engine_named, is_id
    from api.client.rollouts import push_there

    if not is_id(plan_id, "pln"):
        raise BadOption(f"{plan_id} is no plan of the service; give the id of one: moeplan plans list shows them.")
    engine_id = engine_named(service, engine)["id"]
    if dry_run:
        moves = service.get(f"/v1/plans/{plan_id}/diff", {"against": "running", "engine_id": engine_id})
        if as_json:
            print_json(moves)
        else:
            print_line(f"{moves['moved_slots']} slots would move; nothing has moved")
        return
    with progress_bar("pushing") as advance:
        body = {"plan_id": plan_id, "engine_id": engine_id, **how}
        _print_rollout(push_there(service, body, progress=advance), as_json=as_json)


def _roll_back_there(service: ServiceConnection, engine: str, *, to: str | None, reason: str, as_json: bool) -> None:
    from api.client.names import engine_named
    from api.client.rollouts import roll_back_there

    engine_id = engine_named(service, engine)["id"]
    with progress_bar("rolling back") as advance:
        rollout = roll_back_there(service, engine_id=engine_id, to=to, reason=reason, progress=advance)
    _print_rollout(rollout, as_json=as_json)


def _refuse_there(**options: object) -> None:
    """Refuse what a service decides by itself."""
    for name, value in options.items():
        if value is not None:
            raise BadOption(f"--{name.replace('_', '-')} is for an engine that is pushed to from here, without --url.")


def _print_rollout(rollout: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(rollout)
        return
    said = (rollout["result"] or {}).get("sentence") or rollout["sentence"]
    print_line(f"rollout {rollout['id']} is {rollout['state']}: {said}")
    print_notices(rollout["warnings"])


def _print_push(pushed: PushResult, notices: list[Notice], *, as_json: bool) -> None:
    warnings = [notice.to_dict() for notice in (*notices, *pushed.notices)]
    if as_json:
        print_json({**pushed.to_dict(), "warnings": warnings})
        return
    print_line(pushed.sentence())
    print_notices(warnings)
