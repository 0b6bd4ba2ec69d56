"""``moeplan engines``: the engines that a service looks after."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.output import print_json, print_line
from api.cli.service_flags import ServiceFlags
from api.cli.stored_rows import Most, Reason, parsed_labels, print_rows, print_thing
from profiler.json_file import read_json

app = typer.Typer(help="Engines that a service (--url) looks after.")

Engine = Annotated[str, typer.Argument(help="Name, id or URL of an engine.", show_default=False)]
REFERENCE = "env:NAME or file:/PATH of the service's machine, never the key itself."


@app.command("list")
@flattened
def list_(*, at: ServiceFlags, most: Most = 50, as_json: cli.Json = False) -> None:
    """List the engines, newest first."""
    with at.required() as service:
        rows = service.pages("/v1/engines", most=most)
    print_rows(rows, ("id", "name", "url", "state", "labels", "read_at", "resting_until", "error"), title="engines",
               as_json=as_json)  # fmt: skip


@app.command()
@flattened
def add(
    name: Annotated[str, typer.Argument(help="What people call it.", show_default=False)],
    engine_url: Annotated[str, typer.Argument(help="Its URL, as the service reaches it.", show_default=False)],
    *,
    key: Annotated[
        str | None, typer.Option("--key", help=f"Where its (admin) key is: {REFERENCE}", show_default=False)
    ] = None,
    read_key: Annotated[
        str | None, typer.Option("--read-key", help=f"Where its API key is, if it has both: {REFERENCE}")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; repeat for more.", show_default=False)] = None,
    topology: cli.TopologyFile = None,
    topology_text: Annotated[
        Path | None, typer.Option(help="File with what nvidia-smi topo -m prints there.", show_default=False)
    ] = None,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Register an engine, and read it."""
    body: dict[str, Any] = {"name": name, "url": engine_url, "labels": parsed_labels(label or [])}
    given = {"key": key, "read_key": read_key}
    body |= {field: value for field, value in given.items() if value is not None}
    if topology is not None:
        body["costs"] = read_json(topology)
    if topology_text is not None:
        body["topology_text"] = topology_text.read_text(encoding="utf-8", errors="replace")
    with at.required() as service:
        _show(service.post("/v1/engines", body, once=secrets.token_hex(16)).json, as_json=as_json)


@app.command()
@flattened
def show(engine: Engine, *, at: ServiceFlags, as_json: cli.Json = False) -> None:
    """Show an engine as it was last read."""
    from api.client.names import engine_named

    with at.required() as service:
        _show(engine_named(service, engine), as_json=as_json)


@app.command()
@flattened
def read(engine: Engine, *, at: ServiceFlags, as_json: cli.Json = False) -> None:
    """Ask an engine what it is now, also one that is left alone after failures."""
    from api.client.names import engine_named

    with at.required() as service:
        engine_id = engine_named(service, engine)["id"]
        _show(service.post(f"/v1/engines/{engine_id}/read").json, as_json=as_json)


@app.command()
@flattened
def remove(engine: Engine, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Forget an engine; its recordings, plans and history stay."""
    from api.client.names import engine_named

    with at.required() as service:
        found = engine_named(service, engine)
        service.delete(f"/v1/engines/{found['id']}", {"reason": reason})
    print_line(f"removed {found['name']} ({found['id']})")


def _show(engine: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(engine)
        return
    facts = dict(engine.pop("facts") or {})
    abilities = facts.pop("abilities", {})
    moe_layers = facts.pop("moe_layers", [])
    engine["moe_layers"] = len(moe_layers) if moe_layers else None
    for name, ability in abilities.items():
        engine[f"can {name}"] = "yes" if ability.get("works") else f"no: {ability.get('detail') or ability.get('code')}"
    shown = {"ep_size", "nodes", "slots_per_gpu", "experts", "layers", "dispatch", "a2a_backend", "engine", "simulated"}
    engine |= {name: value for name, value in facts.items() if name in shown}
    print_thing(engine, title=engine["name"], as_json=False, without=("name", "costs", "has_key"))
