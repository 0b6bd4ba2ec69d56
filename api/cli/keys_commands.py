"""``moeplan keys``: who may ask a service, and what was changed by whom."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from api.cli import options as cli
from api.cli.option_groups import flattened
from api.cli.output import print_json, print_line
from api.cli.service_flags import ServiceFlags
from api.cli.stored_rows import Most, Reason, print_rows

app = typer.Typer(help="Keys of a service (--url), and its audit log.")


@app.command("list")
@flattened
def list_(*, at: ServiceFlags, most: Most = 50, as_json: cli.Json = False) -> None:
    """List the keys, never the keys themselves."""
    with at.required() as service:
        rows = service.pages("/v1/keys", most=most)
    columns = ("id", "name", "level", "starts_with", "created_at", "expires_at", "last_used_at", "revoked_at")
    print_rows(rows, columns, title="keys", as_json=as_json)


@app.command()
@flattened
def make(
    name: Annotated[str, typer.Argument(help="Who or what it is for.", show_default=False)],
    *,
    level: Annotated[Literal["read", "admin"], typer.Option(help="What it may do.")] = "read",
    expires_at: Annotated[
        str | None, typer.Option(help="When it ends, like 2027-01-31T00:00:00Z.", show_default=False)
    ] = None,
    at: ServiceFlags,
    as_json: cli.Json = False,
) -> None:
    """Make a key; it is printed this once and cannot be shown again."""
    with at.required() as service:
        made = service.post("/v1/keys", {"name": name, "level": level, "expires_at": expires_at}).json
    if as_json:
        print_json(made)
        return
    print_line(made["key"])
    print_line(f"{made['id']} ({made['name']}, {made['level']}) is made; the line above is the key, shown this once.",
               file=sys.stderr)  # fmt: skip


@app.command()
@flattened
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of a key.", show_default=False)],
    *,
    at: ServiceFlags,
    reason: Reason = "",
) -> None:
    """Let a key open nothing any more."""
    with at.required() as service:
        service.delete(f"/v1/keys/{key_id}", {"reason": reason})
    print_line(f"revoked {key_id}")


@app.command()
@flattened
def audit(
    *,
    of: Annotated[str | None, typer.Option(help="Id of one thing.", show_default=False)] = None,
    at: ServiceFlags,
    most: Most = 50,
    as_json: cli.Json = False,
) -> None:
    """List who changed what, when and why, newest first."""
    with at.required() as service:
        rows = service.pages("/v1/audit", {"subject_id": of}, most=most)
    columns = ("at", "who", "action", "subject", "subject_id", "from_state", "to_state", "why")
    print_rows(rows, columns, title="changes", as_json=as_json)
