"""Whether a command that a file of ``deploy/`` runs is one of moeplan's, and its settings are settings."""

from __future__ import annotations

import re

import click
import typer.main

from api.cli.app import app
from api.settings import Settings

READ_ELSEWHERE = {
    "MOEPLAN_CONFIG", "MOEPLAN_SECRETS_DIR", "MOEPLAN_ENGINE_KEY", "MOEPLAN_ALLOW_UNTESTED_SGLANG", "MOEPLAN_URL",
    "MOEPLAN_TOKEN",
}  # fmt: skip
SETTINGS = {f"MOEPLAN_{name.upper()}" for name in Settings.model_fields}


def require_command(arguments: list[str]) -> None:
    """Fail unless moeplan takes these arguments."""
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command)
    rest = [str(argument) for argument in arguments]
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, f"moeplan {' '.join(arguments)}: there is no {name}"
        command, context = found, click.Context(found, parent=context)
    command.make_parser(context).parse_args(rest)


def unknown_settings(text: str) -> set[str]:
    """Return the variables in a text that nothing reads."""
    return set(re.findall(r"\bMOEPLAN_[A-Z0-9_]+", text)) - SETTINGS - READ_ELSEWHERE
