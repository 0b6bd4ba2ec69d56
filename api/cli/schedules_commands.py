"""``moeplan schedules``: when a service rebalances its engines by itself."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.output import print_json, print_line
from api.cli.service_flags import OfEngine, ServiceFlags
from api.cli.stored_rows import Most, Reason, engine_id_of, print_rows, print_thing
from placement.errors import BadOption
from profiler.json_file import read_json

app = typer.Typer(help="When a service (--url) rebalances its engines by itself.")

ScheduleId = Annotated[str, typer.Argument(help="Id of a schedule.", show_default=False)]
COLUMNS = ("id", "name", "cron", "interval_s", "mode", "paused", "next_due_at", "last_success_at", "cycles")


@app.command("list")
@flattened
def list_(*, at: ServiceFlags, engine: OfEngine = None, most: Most = 50, as_json: cli.Json = False) -> None:
    """List the schedules, newest first."""
    with at.required() as service:
        rows = service.pages("/v1/schedules", {"engine_id": engine_id_of(service, engine)}, most=most)
    print_rows(rows, COLUMNS, title="schedules", as_json=as_json)


@app.command()
@flattened
def add(
    engine: Annotated[str, typer.Argument(help="Name, id or URL of an engine.", show_default=False)],
    *,
    cron: Annotated[
        str | None,
        typer.Option(help="Minute, hour, day of month, month, day of week, like '0 */4 * * *'.", show_default=False),
    ] = None,
    every: Annotated[
        float | None, typer.Option("--every", help="Seconds between two cycles, instead of --cron.", show_default=False)
    ] = None,
    time_zone: Annotated[str | None, typer.Option(help="Of --cron: its IANA name; UTC.", show_default=False)] = None,
    mode: Annotated[
        Literal["propose", "apply"],
        typer.Option(help="propose: plans wait for approval. apply: plans that pass all gates are pushed."),
    ] = "propose",
    name: Annotated[str | None, typer.Option(help="What people call it.", show_default=False)] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            help="JSON object with capture, planning, gates and rollout, as POST /v1/schedules takes them.",
            show_default=False,
        ),
    ] = None,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Let an engine be rebalanced by the clock; every cycle ends in a decision."""
    body: dict[str, Any] = {"mode": mode}
    if settings is not None:
        body |= _object(settings)
    given = {"cron": cron, "interval_s": every, "time_zone": time_zone, "name": name}
    body |= {field: value for field, value in given.items() if value is not None}
    with at.required() as service:
        body["engine_id"] = engine_id_of(service, engine)
        made = service.post("/v1/schedules", body, once=secrets.token_hex(16)).json
    _show(made, as_json=as_json)


@app.command()
@flattened
def show(schedule_id: ScheduleId, *, at: ServiceFlags, as_json: cli.Json = False) -> None:
    """Show a schedule, its gates, and where it stands."""
    with at.required() as service:
        _show(service.get(f"/v1/schedules/{schedule_id}"), as_json=as_json)


@app.command()
@flattened
def change(
    schedule_id: ScheduleId,
    *,
    settings: Annotated[Path, typer.Option(help="JSON object with the fields to change.", show_default=False)],
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Change a schedule from its next tick on."""
    with at.required() as service:
        found = service.reply(f"/v1/schedules/{schedule_id}")
        changed = service.patch(f"/v1/schedules/{schedule_id}", _object(settings), etag=found.etag).json
    _show(changed, as_json=as_json)


@app.command()
@flattened
def pause(schedule_id: ScheduleId, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Let no cycle begin until it is resumed."""
    _switch(schedule_id, "pause", at=at, reason=reason)


@app.command()
@flattened
def resume(schedule_id: ScheduleId, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Go on with the next tick."""
    _switch(schedule_id, "resume", at=at, reason=reason)


@app.command("run")
@flattened
def run_now(schedule_id: ScheduleId, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Begin a cycle now, also while it is paused; moeplan jobs watch follows it."""
    with at.required() as service:
        path = f"/v1/schedules/{schedule_id}/run"
        job = service.post(path, {"reason": reason}, once=secrets.token_hex(16)).json
    print_line(f"{job['id']} is {job['state']}: {job['sentence']}")


@app.command()
@flattened
def remove(schedule_id: ScheduleId, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Let a schedule end; its decisions stay."""
    with at.required() as service:
        service.delete(f"/v1/schedules/{schedule_id}", {"reason": reason})
    print_line(f"removed {schedule_id}")


def _switch(schedule_id: str, verb: str, *, at: ServiceFlags, reason: str) -> None:
    with at.required() as service:
        schedule = service.post(f"/v1/schedules/{schedule_id}/{verb}", {"reason": reason}).json
    due = "paused" if schedule["paused"] else f"due next at {schedule['next_due_at']}"
    print_line(f"{schedule_id} ({schedule['name']}) is {due}")


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise BadOption(f'{path.name} holds no JSON object, like {{"gates": {{"least_gain": 0.02}}}}.')
    return value


def _show(schedule: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    print_thing(schedule, title=schedule["name"], as_json=False, without=("name",))
