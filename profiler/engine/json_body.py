"""Bodies of requests to an engine: bounded in bytes and in nesting, and JSON as the standard has it.

Like :mod:`profiler.engine.contract`, it imports only the standard library. The plugin and the replay engine read with
it, so that both refuse the same.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Iterable

from profiler.engine.json_fields import ContractViolation

MAX_BODY_BYTES = 64 * 2**20
"""A map of 100 layers with 1,000 slots takes half a megabyte."""

MAX_DEPTH = 32
"""A push nests three levels deep. Python ends what goes down a value level by level at some depth, with an error."""


async def read_json(pieces: AsyncIterable[bytes]) -> object:
    """Read a body piece by piece and parse it; an empty one is an empty object.

    Raises
    ------
    ContractViolation
        ``BAD_MESSAGE`` where it is longer than :data:`MAX_BODY_BYTES`, ``BAD_JSON`` where it is no JSON.
    """
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise ContractViolation(f"the request is larger than {MAX_BODY_BYTES} bytes.")
    return parse_json(bytes(body)) if body else {}


def parse_json(body: bytes) -> object:
    """Parse a body. Raises :class:`ContractViolation`, code ``BAD_JSON``, with what is wrong."""
    try:
        value = json.loads(body, parse_constant=_no_number)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # of these some are no JSONDecodeError: wrong bytes, integers of thousands of digits
        raise ContractViolation(f"the body is not JSON ({error}).", code="BAD_JSON") from None
    if _is_deeper(value, MAX_DEPTH):
        raise _too_deep()
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _too_deep() -> ContractViolation:
    return ContractViolation(f"the body nests deeper than {MAX_DEPTH} levels.", code="BAD_JSON")


def _is_deeper(value: object, levels: int) -> bool:
    """Whether lists and objects stand in each other more than so many levels deep."""
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(levels):
        level = [inner for outer in level for inner in _values(outer) if isinstance(inner, list | dict)]
    return bool(level)


def _values(container: list[object] | dict[str, object]) -> Iterable[object]:
    return container.values() if isinstance(container, dict) else container
