"""``moeplan rollouts``: layouts on their way into engines."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.service_flags import OfEngine, ServiceFlags
from api.cli.stored_rows import Most, engine_id_of, print_rows, print_thing

app = typer.Typer(help="Rollouts of a service (--url); moeplan push and rollback begin them.")


@app.command("list")
@flattened
def list_(*, at: ServiceFlags, engine: OfEngine = None, most: Most = 50, as_json: cli.Json = False) -> None:
    """List rollouts, newest first."""
    with at.required() as service:
        rows = service.pages("/v1/rollouts", {"engine_id": engine_id_of(service, engine)}, most=most)
    columns = ("id", "state", "plan_id", "takes_back_id", "reason", "ended_at", "error")
    print_rows(rows, columns, title="rollouts", as_json=as_json)


@app.command()
@flattened
def show(
    rollout_id: Annotated[str, typer.Argument(help="Id of a rollout.", show_default=False)],
    *,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Show how far a rollout is, and what the engine said."""
    with at.required() as service:
        print_thing(service.get(f"/v1/rollouts/{rollout_id}"), title=rollout_id, as_json=as_json)
