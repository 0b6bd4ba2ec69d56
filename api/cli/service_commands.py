"""``moeplan serve``, ``worker`` and ``db``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import Json
from api.cli.output import print_json, print_line

if TYPE_CHECKING:
    from api.settings import Settings

# The service loads FastAPI, SQLAlchemy, DBOS and Alembic, so each command imports what it needs.

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file of settings (or MOEPLAN_CONFIG).", show_default=False)
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the SQLite database and all stored files.", show_default=False)
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="postgresql://user@host/name or sqlite:///path; moeplan.db in the data folder without it. A password "
        "belongs into MOEPLAN_DATABASE_URL, where other users of the machine cannot read it.",
        show_default=False,
    ),
]

db = typer.Typer(help="The service's database.")


@db.command("upgrade")
def db_upgrade(config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Make the database, or bring it to this moeplan's schema; running it again does nothing."""
    from api.jobs import durable
    from api.store.database import Database
    from api.store.migrate import upgrade

    settings = _settings(config, data_dir=data_dir, database_url=database_url)
    database = Database(settings.database)
    try:
        before, after = upgrade(database)
        durable.upgrade(settings.database)
    finally:
        database.close()
    done = "is up to date" if before == after else f"was upgraded from {before or 'nothing'}"
    print_line(f"{database.shown} {done}: revision {after}.")


@db.command("downgrade")
def db_downgrade(
    revision: Annotated[
        str, typer.Argument(help="The newest one of the older moeplan, which it names when it refuses.")
    ],
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Take the schema back to an older revision, before an older moeplan is installed. Back up first: what only newer
    revisions keep is lost. Stop the service and all workers.
    """
    from api.store.database import Database
    from api.store.migrate import downgrade

    database = Database(_settings(config, data_dir=data_dir, database_url=database_url).database)
    try:
        before, after = downgrade(database, revision)
    finally:
        database.close()
    done = "has it already" if before == after else f"was taken back from {before}"
    print_line(f"{database.shown} {done}: revision {after}.")


@db.command("check")
def db_check(
    config: Config = None, data_dir: DataDir = None, database_url: DatabaseUrl = None, as_json: Json = False
) -> None:
    """Say whether the database answers and has this moeplan's schema; exit code 2 where not."""
    from api.store.database import Database
    from api.store.migrate import differences, require_current

    database = Database(_settings(config, data_dir=data_dir, database_url=database_url).database)
    try:
        revision = require_current(database)
        with database.connection() as connection:
            differing = [str(each) for each in differences(connection)]
    finally:
        database.close()
    if as_json:
        print_json({"database": database.shown, "revision": revision, "differences": differing})
    else:
        print_line(f"{database.shown} answers and has revision {revision}, this moeplan's.")
        for each in differing:
            print_line(f"  differs: {each}")
    if differing:
        raise typer.Exit(2)


def serve(
    config: Config = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (127.0.0.1); another one needs a key.", show_default=False)
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port (8430); 0 takes a free one.", show_default=False)] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Worker processes kept running beside the service (1).", show_default=False),
    ] = None,
) -> None:
    """Serve the REST API, with workers for its jobs, until Ctrl-C or SIGTERM."""
    from api.serving import serve as serve_until_told

    settings = _settings(config, host=host, port=port, data_dir=data_dir, database_url=database_url, workers=workers)
    serve_until_told(settings, on_ready=_say_ready)


def _say_ready(url: str, open_to_all: bool) -> None:
    print_line(f"moeplan serves on {url}; description: {url}/openapi.json")
    if open_to_all:
        print_line(
            "There is no key: whoever is on this machine may do everything, nobody else gets an answer. "
            "MOEPLAN_ADMIN_API_KEY sets one."
        )
    sys.stdout.flush()


def worker(
    config: Config = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The worker's name; one that is started again under its old name goes on with its jobs at once.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Carry out the service's jobs until Ctrl-C or SIGTERM; run as many as there is work for."""
    from api.jobs.worker import run_worker

    run_worker(_settings(config, data_dir=data_dir, database_url=database_url), worker_id=name)


def _settings(config: Path | None, **flags: object) -> Settings:
    from api.settings import read_settings

    return read_settings(config, **flags)
