"""Reading fields of a JSON object, one check each, so that a bad message ends in one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")


class ContractViolation(ValueError):
    """A message is not what the contract says.

    Attributes
    ----------
    code : str
        Stable code in capitals; the same words as on moeplan's command line.
    detail : str
        One sentence with the field, what was found and what is valid.
    """

    def __init__(self, detail: str, *, code: str = "BAD_MESSAGE") -> None:
        self.code = code
        self.detail = detail
        super().__init__(detail)


def shown(value: object, *, limit: int = 60) -> str:
    """Return a value as short text for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class Fields:
    """The fields of one JSON object, read by type.

    Parameters
    ----------
    message
        Parsed JSON.
    where
        Name of the object in messages, for example ``placement``.

    Raises
    ------
    ContractViolation
        From the start when ``message`` is no object, later from the reading methods.
    """

    def __init__(self, message: object, where: str) -> None:
        if not isinstance(message, Mapping):
            raise ContractViolation(f"{where} is {shown(message)}; it must be a JSON object.")
        self._message: Mapping[str, Any] = message
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self._message.get(name) is not None

    def value(self, name: str) -> Any:
        """Return a field that must be there, whatever its type."""
        if name not in self._message:
            raise ContractViolation(f"{self.where} has no field {name!r}.")
        return self._message[name]

    def integer(self, name: str, *, minimum: int = 0) -> int:
        return as_integer(self.value(name), f"{self.where}.{name}", minimum=minimum)

    def number(self, name: str, *, minimum: float = 0.0) -> float:
        value = self.value(name)
        number = _finite(value)
        if number is None:
            raise ContractViolation(f"{self.where}.{name} is {shown(value)}; it must be a finite number.")
        if number < minimum:
            raise ContractViolation(f"{self.where}.{name} is {shown(value)}; it must be at least {minimum:g}.")
        return number

    def text(self, name: str, *, allowed: tuple[str, ...] = ()) -> str:
        value = _as_text(self.value(name), f"{self.where}.{name}")
        if allowed and value not in allowed:
            raise ContractViolation(f"{self.where}.{name} is {shown(value)}; it must be one of {', '.join(allowed)}.")
        return value

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise ContractViolation(f"{self.where}.{name} is {shown(value)}; it must be true or false.")
        return value

    def items(self, name: str) -> list[Any]:
        value = self.value(name)
        if not isinstance(value, list):
            raise ContractViolation(f"{self.where}.{name} is {shown(value)}; it must be a list.")
        return value

    def integers(self, name: str, *, minimum: int = 0) -> tuple[int, ...]:
        where = f"{self.where}.{name}"
        return tuple(as_integer(item, f"{where}[{i}]", minimum=minimum) for i, item in enumerate(self.items(name)))

    def texts(self, name: str) -> tuple[str, ...]:
        where = f"{self.where}.{name}"
        return tuple(_as_text(item, f"{where}[{i}]") for i, item in enumerate(self.items(name)))

    def optional(self, name: str, read: Callable[[str], Value]) -> Value | None:
        """Read a field with ``read``, or return None where it is absent or null."""
        return read(name) if name in self else None


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        return None
    return number if math.isfinite(number) else None


def _as_text(value: object, where: str) -> str:
    """Refuse what is no text or cannot be sent on: JSON may hold half of a surrogate pair, which UTF-8 cannot."""
    if not isinstance(value, str):
        raise ContractViolation(f"{where} is {shown(value)}; it must be a text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ContractViolation(f"{where} holds half of a surrogate pair, which is no text.") from None
    return value


def as_integer(value: object, where: str, *, minimum: int = 0) -> int:
    """Return a JSON value as a whole number (``3.0`` is not one).

    Raises
    ------
    ContractViolation
        Naming ``where``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ContractViolation(f"{where} is {shown(value)}; it must be a whole number.")
    if value < minimum:
        raise ContractViolation(f"{where} is {shown(value)}; it must be at least {minimum}.")
    return value
