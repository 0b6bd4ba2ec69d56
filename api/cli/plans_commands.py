"""``moeplan plans``: the plans that a service keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.output import print_json, print_line
from api.cli.plan_output import print_plan
from api.cli.service_flags import OfEngine, ServiceFlags
from api.cli.stored_rows import Most, Reason, engine_id_of, print_rows

app = typer.Typer(help="Plans that a service (--url) keeps.")

PlanId = Annotated[str, typer.Argument(help="Id of a plan.", show_default=False)]


@app.command("list")
@flattened
def list_(*, at: ServiceFlags, engine: OfEngine = None, most: Most = 50, as_json: cli.Json = False) -> None:
    """List plans, newest first."""
    with at.required() as service:
        rows = service.pages("/v1/plans", {"engine_id": engine_id_of(service, engine)}, most=most)
    columns = ("id", "name", "state", "status", "local_gpu", "imbalance", "gap", "moved_slots", "created_at", "error")
    print_rows(rows, columns, title="plans", as_json=as_json)


@app.command()
@flattened
def show(plan_id: PlanId, *, at: ServiceFlags, as_json: cli.Json = False) -> None:
    """Show a plan beside the baselines and the running layout, as moeplan plan does."""
    from api.client.plans import stored_plan

    with at.required() as service:
        row = service.get(f"/v1/plans/{plan_id}")
        made = stored_plan(service, plan_id)
    if as_json:
        print_json({**row, "comparison": made.summary()})
        return
    print_plan(made)
    print_line(f"{plan_id} ({row['name']}) is {row['state']}: {row['sentence']}")


@app.command()
@flattened
def download(
    plan_id: PlanId,
    *,
    out: Annotated[Path, typer.Option(help="Plan to write (.json).", show_default=False)],
    at: ServiceFlags,
) -> None:
    """Fetch PLAN.json."""
    with at.required() as service:
        service.download(f"/v1/plans/{plan_id}/file", out)
    print_line(f"wrote {out}")


@app.command()
@flattened
def approve(plan_id: PlanId, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Let a plan be pushed."""
    _decide(plan_id, "approve", at=at, reason=reason)


@app.command()
@flattened
def reject(plan_id: PlanId, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Decide against a plan, also one that was approved."""
    _decide(plan_id, "reject", at=at, reason=reason)


def _decide(plan_id: str, verb: str, *, at: ServiceFlags, reason: str) -> None:
    with at.required() as service:
        plan = service.post(f"/v1/plans/{plan_id}/{verb}", {"reason": reason}).json
    print_line(f"{plan_id} is {plan['state']}: {plan['sentence']}")
