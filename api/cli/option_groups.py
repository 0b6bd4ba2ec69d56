"""Options declared once for several commands, as the fields of a dataclass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of its dataclass parameters as options of its own.

    A parameter whose type is a dataclass disappears from the command's signature; each field of the dataclass, with its
    ``Annotated[..., typer.Option(...)]`` and its default, takes its place. The command is still called with the
    dataclass.
    """
    groups: dict[str, type] = {}
    options: list[Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[parameter.name] = kind
            options.extend(_options_of(kind))
        else:
            options.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def with_groups(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    with_groups.__signature__ = signature(command).replace(parameters=options, return_annotation=None)  # type: ignore[attr-defined]
    return with_groups


def _options_of(kind: type) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, annotation=hints[field.name], default=_default(field))
        for field in fields(kind)
    ]


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
