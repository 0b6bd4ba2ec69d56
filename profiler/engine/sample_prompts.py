"""Prompt files of ``moeplan sample``: one text a line, or JSON objects a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiler.engine.json_fields import ContractViolation, Fields, shown
from profiler.errors import BadJson, UnreadableInput
from profiler.files import reason, require_regular_file
from profiler.json_file import parse_json

FIELDS = ("text", "input_ids", "sampling_params", "domain", "routed_dp_rank")
MAX_FILE_BYTES = 2**30
MAX_TOKEN_ID = 2**31


@dataclass(frozen=True)
class Prompt:
    """One request to be sampled.

    Attributes
    ----------
    text : str or None
    input_ids : tuple of int or None
        Exactly one of the two is given.
    sampling_params : mapping
        SGLang's; what is not in it takes the caller's defaults.
    domain : str
        Name of the kind of traffic, which plans can be cut by; empty for none.
    routed_dp_rank : int or None
        Data-parallel rank that shall serve it.
    """

    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    routed_dp_rank: int | None = None


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read a file of prompts: JSON objects a line when its first line is one, else one text a line; blank lines are
    left out.

    Raises
    ------
    InputNotFound, UnreadableDump
        The file is missing or may not be read.
    UnreadableInput
        It is too large, no UTF-8, or holds no prompt.
    BadJson
        A line is no JSON object of :data:`FIELDS`, by its number.
    """
    require_regular_file(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UnreadableInput(f"{path.name} has more than {MAX_FILE_BYTES} bytes of prompts; split it.")
        # Only line feeds end a line: texts may hold other characters that Unicode breaks lines at.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{path.name} is no UTF-8 text: byte {error.start} cannot be read.") from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise UnreadableInput(f"{path.name} holds no prompt.")
    if not numbered[0][1].startswith("{"):
        return tuple(Prompt(text=line) for _, line in numbered)
    return tuple(_prompt(line, where=f"{path.name}, line {number}") for number, line in numbered)


def _prompt(line: str, *, where: str) -> Prompt:
    message = parse_json(line, name=where)
    try:
        return _checked(Fields(message, where), message)
    except ContractViolation as violation:
        raise BadJson(violation.detail) from None


def _checked(fields: Fields, message: Mapping[str, Any]) -> Prompt:
    unknown = sorted(set(message) - set(FIELDS))
    if unknown:
        raise ContractViolation(f"{fields.where} has the field {unknown[0]!r}; there are {', '.join(FIELDS)}.")
    if ("text" in fields) == ("input_ids" in fields):
        raise ContractViolation(f"{fields.where} needs either text or input_ids, and not both.")
    text = fields.optional("text", fields.text)
    ids = fields.optional("input_ids", fields.integers)
    if text == "" or ids == ():
        raise ContractViolation(f"{fields.where} has an empty prompt.")
    if ids is not None and max(ids) >= MAX_TOKEN_ID:
        raise ContractViolation(f"{fields.where} names token {max(ids)}; ids are below 2^31.")
    sampling = fields.value("sampling_params") if "sampling_params" in fields else {}
    if not isinstance(sampling, Mapping):
        raise ContractViolation(f"{fields.where}.sampling_params must be a JSON object.")
    if sampling.get("n", 1) != 1:
        raise ContractViolation(f"{fields.where}.sampling_params.n is {shown(sampling['n'])}; it must be 1.")
    if not _is_unicode(sampling):
        raise ContractViolation(f"{fields.where}.sampling_params holds half of a surrogate pair, which is no text.")
    return Prompt(
        text=text,
        input_ids=ids,
        sampling_params=dict(sampling),
        domain=fields.optional("domain", fields.text) or "",
        routed_dp_rank=fields.optional("routed_dp_rank", fields.integer),
    )


def _is_unicode(value: object) -> bool:
    """Return whether a JSON value can be sent: Python's parser lets halves of surrogate pairs pass."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
