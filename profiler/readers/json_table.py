"""A JSON file seen as tables of counts.

Rows of numbers are cut out of the text first and turned into int64 arrays one at a time, so that a large file is
never held as Python numbers.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.errors import BadCountShape, BadCountType, BadJson, NonFiniteCount
from profiler.readers.counts import MAX_EXPERTS, MAX_SHARED_EXPERTS, exact_number, whole_count
from profiler.readers.layer_rows import MAX_LAYERS

MAX_JSON_BYTES = 256 * 2**20
_CONSTANT_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_POSITION_LIMIT = 16 * 2**20

# A string (so that brackets inside one are skipped; an unterminated one runs to the end), or a list without lists.
_STRING_OR_ROW = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|\[[^\[\]{}"]*+\]', re.DOTALL)


@dataclass(frozen=True)
class Row:
    """A list without lists in it, still text, from ``start`` to ``end``."""

    start: int
    end: int


class JsonTable:
    """A JSON file whose innermost lists stay text until they are asked for."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._text = _read_text(path)
        self._unread: set[Row] = set()
        self.root = self._structure()

    def require_rest_is_json(self) -> None:
        """Parse the rows nobody asked for, which stand under keys that are not counts."""
        for row in sorted(self._unread, key=lambda row: row.start):
            self._parsed(row)

    def empty(self, shape: tuple[int, ...], at: str) -> npt.NDArray[np.int64]:
        """Return an array to fill; ragged rows are refused before their outer size claims memory."""
        if math.prod(shape) > len(self._text):
            raise BadCountShape(f"{at} of {self._name} is ragged: it has fewer numbers than {_times(shape)}.")
        return np.empty(shape, dtype=np.int64)

    def rows_of(self, value: Any, at: str, like: tuple[int, ...] | None = None) -> npt.NDArray[np.int64]:
        """Return a list of rows as int64 [R, X], of the shape ``like`` where given."""
        if isinstance(value, Row):
            self.row(value, at)
            raise BadCountShape(
                f"{at} of {self._name} is one list of numbers; a list of layers, each a list, is needed."
            )
        if not isinstance(value, list):
            raise BadCountType(f"{at} of {self._name} is {shown(value)}; a list of layers is needed.")
        if like is not None and len(value) != like[0]:
            raise BadCountShape(f"{at} of {self._name} has {len(value)} layers, the windows before have {like[0]}.")
        if len(value) > MAX_LAYERS:
            raise BadCountShape(f"{at} of {self._name} has {len(value)} layers; up to {MAX_LAYERS} are read.")
        first = self.row(value[0], f"{at}[0]", width=None if like is None else like[1])
        rows_RX = self.empty((len(value), first.size), at)
        rows_RX[0] = first
        for index in range(1, len(value)):
            rows_RX[index] = self.row(value[index], f"{at}[{index}]", width=first.size)
        return rows_RX

    def row(self, value: Any, at: str, width: int | None = None) -> npt.NDArray[np.int64]:
        """Return one row as int64 [X], of ``width`` values where given."""
        if isinstance(value, list):
            self._refuse_mixed(value, at)
        if not isinstance(value, Row):
            raise BadCountType(f"{at} of {self._name} is {shown(value)}, where a list of whole numbers is needed.")
        counts = self._numbers(value, at)
        if counts.size == 0 or counts.size > MAX_EXPERTS + MAX_SHARED_EXPERTS:
            raise BadCountShape(f"{at} of {self._name} has {counts.size} counts; 1 to {MAX_EXPERTS} are read.")
        if width is not None and counts.size != width:
            raise BadCountShape(f"{at} of {self._name} has {counts.size} counts; the rows before have {width}.")
        return counts

    def _refuse_mixed(self, values: list[Any], at: str) -> None:
        for index, value in enumerate(values):
            if not isinstance(value, (list, Row)):
                raise BadCountType(f"{at}[{index}] of {self._name} is {shown(value)}; a count is a whole number.")
        raise BadCountShape(f"{at} of {self._name} is nested deeper than windows, layers and experts.")

    def _numbers(self, row: Row, at: str) -> npt.NDArray[np.int64]:
        values = self._parsed(row)
        if set(map(type, values)) <= {int}:
            try:
                counts = np.array(values, dtype=np.int64)
            except OverflowError:
                counts = np.array([-1])
            if counts.size == 0 or counts.min() >= 0:
                return counts
        text = self._text[row.start : row.end]
        exact: list[Any] = json.loads(text, parse_int=exact_number, parse_float=exact_number, parse_constant=float)
        return np.array([self._count(value, f"{at}[{index}]") for index, value in enumerate(exact)], dtype=np.int64)

    def _parsed(self, row: Row) -> list[Any]:
        """Parse a row at full speed; numbers that Python refuses to parse that way come back as None."""
        self._unread.discard(row)
        try:
            values: list[Any] = json.loads(self._text[row.start : row.end])
        except json.JSONDecodeError as error:
            raise BadJson(self._not_json(error.msg, row.start + error.pos)) from error
        except ValueError:  # a whole number of thousands of digits
            return [None]
        return values

    def _count(self, value: Any, at: str) -> int:
        """Return one value as a count, or say what is wrong with it."""
        if isinstance(value, float):  # only the constants that JSON does not have are parsed to float
            raise NonFiniteCount(f"{at} of {self._name} is {_CONSTANT_NAMES[str(value)]}; counts are finite.")
        if not isinstance(value, Decimal):
            raise BadCountType(f"{at} of {self._name} is {shown(value)}; a count is a whole number.")
        return whole_count(value, where=f"{at} of {self._name}")

    def _structure(self) -> Any:
        """Parse the text with every row replaced by a mark."""
        mark = f"row {secrets.token_hex(8)}"  # drawn anew, so that no object of the file can pass for a mark

        def replace(match: re.Match[str]) -> str:
            return match[0] if match[0][0] == '"' else f'{{"{mark}":[{match.start()},{match.end()}]}}'

        def object_hook(pairs: Sequence[tuple[str, Any]]) -> Any:
            if len(pairs) == 1 and pairs[0][0] == mark:
                row = Row(*pairs[0][1])
                self._unread.add(row)
                return row
            return self._without_repeats(pairs)

        try:
            return json.loads(_STRING_OR_ROW.sub(replace, self._text), object_pairs_hook=object_hook)
        except json.JSONDecodeError as error:
            raise BadJson(self._first_error(error)) from error
        except RecursionError as error:
            raise BadJson(f"{self._name} is nested too deeply to be read.") from error
        except ValueError as error:
            raise BadJson(f"{self._name} holds a number with thousands of digits.") from error

    def _without_repeats(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise BadJson(f"{self._name} has the key {shown(key)} twice; which one counts is open.")
            seen[key] = value
        return seen

    def _first_error(self, error: json.JSONDecodeError) -> str:
        """Describe a syntax error; its place is in the marked text, so small files are parsed again as they are."""
        if not self._text.strip():
            return f"{self._name} is empty."
        if len(self._text) <= _POSITION_LIMIT:
            try:
                json.loads(self._text, parse_int=len, parse_float=len)
            except json.JSONDecodeError as original:
                return self._not_json(original.msg, original.pos)
            except RecursionError:
                return f"{self._name} is nested too deeply to be read."
        return f"{self._name} is not JSON: {error.msg}."

    def _not_json(self, message: str, position: int) -> str:
        line = self._text.count("\n", 0, position) + 1
        column = position - self._text.rfind("\n", 0, position)
        return f"{self._name} is not JSON: {message} at line {line}, column {column}."


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise BadJson(
            f"{path.name} is larger than {MAX_JSON_BYTES // 2**20} MiB, the most that is read as JSON; store the "
            "counts as .npz."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadJson(f"{path.name} is not text in UTF-8 (byte {error.start}), so it is no JSON.") from error


def shown(value: object) -> str:
    """Write a value as JSON does, shortened."""
    if isinstance(value, (Row, list)):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)
