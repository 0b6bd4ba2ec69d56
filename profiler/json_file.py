"""JSON files read so that there is one way to understand them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from profiler.errors import BadJson
from profiler.files import require_regular_file

MAX_JSON_BYTES = 64 * 2**20


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Parse a JSON file, refusing what two readers could understand differently.

    Refused besides malformed text: a key given twice, NaN and infinities (also as ``1e999``), text that is not
    UTF-8, nesting that exhausts the parser, and files above ``max_bytes``.

    Raises
    ------
    InputNotFound, UnreadableDump
        The file is missing, no regular file, or may not be read.
    BadJson
        With line and column, or the key.
    """
    return parse_json(_read_text(path, max_bytes=max_bytes), name=path.name)


def parse_json(text: str, *, name: str) -> Any:
    """Parse JSON text as :func:`read_json` does a file's. Raises :class:`BadJson` naming ``name``."""
    try:
        return json.loads(
            text, object_pairs_hook=_object_without_repeats, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except json.JSONDecodeError as error:
        found = f"{error.msg} at line {error.lineno}, column {error.colno}" if text.strip() else "the file is empty"
        raise BadJson(f"{name} is not JSON: {found}.") from error
    except RecursionError as error:
        raise BadJson(f"{name} is nested too deeply to be read.") from error
    except ValueError as error:  # the hooks below, and whole numbers of thousands of digits
        raise BadJson(f"{name} cannot be read: {error}.") from error


def _read_text(path: Path, *, max_bytes: int) -> str:
    with require_regular_file(path).open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise BadJson(f"{path.name} is larger than {max_bytes // 2**20} MiB, the most that is read as JSON.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadJson(f"{path.name} is not text in UTF-8 (byte {error.start}), so it is no JSON.") from error


def _object_without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {repeated!r} is there twice")
    return value


def _refuse_constant(token: str) -> NoReturn:
    raise ValueError(f"it holds {token}, which JSON does not have")


def _finite_float(token: str) -> float:
    value = float(token)
    if not math.isfinite(value):
        raise ValueError(f"the number {token} is too large")
    return value
