"""Options declared once as the fields of a dataclass, and taken by several commands."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from api.cli.option_groups import flattened
from api.cli.plan_options import PlanFlags
from api.plan_request import PlanRequest


@dataclass(frozen=True, kw_only=True)
class Limits:
    most: Annotated[int, typer.Option(help="The most.")]
    least: Annotated[int, typer.Option("--at-least", help="The least.")] = 3


@flattened
def command(
    name: Annotated[str, typer.Argument()],
    *,
    limits: Limits,
    loud: Annotated[bool, typer.Option("--loud")] = False,
) -> None:
    """Say what was given."""
    typer.echo(f"{name} {limits.most} {limits.least} {loud}")


def ran(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments)).output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "--most", "5"), "a 5 3 False"),
        (("--at-least", "4", "--loud", "--most", "5", "a"), "a 5 4 True"),
    ],
)
def test_the_fields_are_options_of_the_command(arguments: tuple[str, ...], said: str) -> None:
    assert ran(*arguments).strip() == said


def test_a_field_without_default_must_be_given() -> None:
    assert "Missing option '--most'" in ran("a")


def test_the_group_itself_is_no_option() -> None:
    assert list(inspect.signature(command).parameters) == ["name", "most", "least", "loud"]
    assert "limits" not in ran("--help")


def test_flags_of_plan_are_the_fields_of_a_request_with_the_same_defaults() -> None:
    """A flag without a field would be refused only when used; another default would mean two truths."""
    asked = {field.name: field.default for field in fields(PlanRequest)}
    flags = {field.name: field.default for field in fields(PlanFlags)}
    assert set(asked) - set(flags) == {"test"}
    differ = {name for name, default in flags.items() if asked[name] != default}
    assert differ == {"workers"}  # text on the command line
