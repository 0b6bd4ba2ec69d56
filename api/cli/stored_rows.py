"""What a service keeps, on a terminal: lists as tables, one thing as its fields; and the options of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.output import TextTable, number, print_json, print_line, print_table

if TYPE_CHECKING:
    from api.client.connection import ServiceConnection

Row = Mapping[str, Any]

Most = Annotated[int, typer.Option("--most", help="Rows to list, the newest.", min=1, max=10_000)]
Reason = Annotated[str, typer.Option(help="Why; it stands in the service's audit log.", show_default=False)]


def print_rows(rows: Sequence[Row], columns: Sequence[str], *, title: str, as_json: bool) -> None:
    """Print a list; with ``as_json`` everything that is known of each row."""
    if as_json:
        print_json({"items": list(rows)})
        return
    if not rows:
        print_line(f"no {title}")
        return
    table = TextTable(*columns, title=title)
    for row in rows:
        table.add_row(*(in_words(row.get(column)) for column in columns))
    print_table(table)


def print_thing(thing: Row, *, title: str, as_json: bool, without: Sequence[str] = ()) -> None:
    """Print one thing, a row for each field."""
    if as_json:
        print_json(thing)
        return
    table = TextTable("what", "value", title=title)
    for name, value in thing.items():
        if name not in without and value is not None:
            table.add_row(name, in_words(value))
    print_table(table)


def in_words(value: object) -> str:
    """Return a value for a cell: times to the second, figures with four decimals, an error as its sentence."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str) and len(value) > 19 and value[4:5] == "-" and value[10:11] == "T":
        return f"{value[:10]} {value[11:19]}"
    if isinstance(value, Mapping):
        if "code" in value and "detail" in value:
            return f"{value['code']}: {value['detail']}"
        return ", ".join(f"{name} {in_words(each)}" for name, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(in_words(each) for each in value) if value else "-"
    return str(value)


def engine_id_of(service: ServiceConnection, name: str | None) -> str | None:
    """Return the id of an engine by its id, name or URL; None for none."""
    from api.client.names import engine_named

    return None if name is None else str(engine_named(service, name)["id"])


def parsed_labels(given: Sequence[str]) -> dict[str, str]:
    """Parse ``name=value`` pairs. Raises :class:`BadOption`."""
    from placement.errors import BadOption

    labels = {}
    for each in given:
        name, mark, value = each.partition("=")
        if not (name and mark and value):
            raise BadOption(f"--label {each!r} is not NAME=VALUE, like cluster=eu1.")
        labels[name] = value
    return labels
