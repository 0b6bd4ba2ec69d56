"""``moeplan jobs``: long work of a service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.output import print_json, print_line, progress_bar
from api.cli.service_flags import OfEngine, ServiceFlags
from api.cli.stored_rows import Most, Reason, engine_id_of, print_rows, print_thing

app = typer.Typer(help="Long work of a service (--url).")

JobId = Annotated[str, typer.Argument(help="Id of a job.", show_default=False)]


@app.command("list")
@flattened
def list_(
    *,
    at: ServiceFlags,
    engine: OfEngine = None,
    state: Annotated[
        str | None,
        typer.Option(help="queued, running, succeeded, failed or cancelled.", show_default=False),
    ] = None,
    most: Most = 50,
    as_json: cli.Json = False,
) -> None:
    """List jobs, newest first."""
    with at.required() as service:
        asked = {"engine_id": engine_id_of(service, engine), "state": state}
        rows = service.pages("/v1/jobs", asked, most=most)
    columns = ("id", "kind", "state", "progress", "step", "subject_id", "created_at", "ended_at", "error")
    print_rows(rows, columns, title="jobs", as_json=as_json)


@app.command()
@flattened
def show(job_id: JobId, *, at: ServiceFlags, as_json: cli.Json = False) -> None:
    """Show how far a job is."""
    with at.required() as service:
        print_thing(service.get(f"/v1/jobs/{job_id}"), title=job_id, as_json=as_json)


@app.command()
@flattened
def watch(job_id: JobId, *, at: ServiceFlags, as_json: cli.Json = False) -> None:
    """Follow a job to its end, over breaks of the connection; Ctrl-C leaves it running.

    Ends as the job does: with its error, or exit code 0.
    """
    from api.client.events import follow, result_of

    with at.required() as service:
        with progress_bar("job") as advance:
            for event in follow(service, job_id):
                _tell(event.kind, event.data, advance=advance, as_json=as_json)
        job = result_of(service, job_id)
    if as_json:
        print_json(job)
    else:
        print_line(f"{job_id} has {job['state']}")


@app.command()
@flattened
def cancel(job_id: JobId, *, at: ServiceFlags, reason: Reason = "") -> None:
    """Stop a job; a push is never cut off."""
    with at.required() as service:
        job = service.post(f"/v1/jobs/{job_id}/cancel", {"reason": reason}).json
    said = "cancelled" if job["state"] == "cancelled" else "asked to stop"
    print_line(f"{job_id} is {said}")


def _tell(kind: str, data: dict[str, Any], *, advance: Any, as_json: bool) -> None:
    if kind == "progress" and advance is not None:
        advance(float(data["progress"]))
    elif kind == "search" and advance is not None:
        return  # beside a bar they would be too many lines
    elif not as_json:
        print_line(f"{str(data.get('at', ''))[11:19]} {kind} {_said(kind, data)}".rstrip())


def _said(kind: str, data: dict[str, Any]) -> str:
    if kind == "progress":
        return f"{data.get('progress', 0):.0%} {data.get('step', '')}"
    if kind == "search":
        best, bound = (_number(data.get(name)) for name in ("best", "bound"))
        return f"{data.get('figure', '')} {best}, proven bound {bound}, imbalance {_number(data.get('imbalance'))}"
    return str(data.get("sentence", ""))


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else "not known"
