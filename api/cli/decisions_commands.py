"""``moeplan decisions``: how a service's rebalancing cycles ended."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.service_flags import OfEngine, ServiceFlags
from api.cli.stored_rows import Most, engine_id_of, print_rows, print_thing

app = typer.Typer(help="How the rebalancing cycles of a service (--url) ended.")


@app.command("list")
@flattened
def list_(
    *,
    at: ServiceFlags,
    engine: OfEngine = None,
    schedule: Annotated[str | None, typer.Option(help="Only of this schedule.", show_default=False)] = None,
    outcome: Annotated[
        str | None,
        typer.Option(help="Only nothing, proposed, applied, rolled_back, skipped or failed.", show_default=False),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only from then on, like 2026-12-01T00:00:00Z.", show_default=False)
    ] = None,
    most: Most = 50,
    as_json: cli.Json = False,
) -> None:
    """List decisions, newest first, each with its sentence."""
    with at.required() as service:
        engine_id = engine_id_of(service, engine)
        asked = {"engine_id": engine_id, "schedule_id": schedule, "outcome": outcome, "since": since}
        rows = service.pages("/v1/decisions", asked, most=most)
    print_rows(rows, ("id", "created_at", "outcome", "code", "sentence"), title="decisions", as_json=as_json)


@app.command()
@flattened
def show(
    decision_id: Annotated[str, typer.Argument(help="Id of a decision.", show_default=False)],
    *,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Show a decision with its numbers."""
    with at.required() as service:
        print_thing(service.get(f"/v1/decisions/{decision_id}"), title=decision_id, as_json=as_json)
