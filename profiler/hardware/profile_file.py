"""A hardware profile as a TOML file; version 1."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from placement.errors import BadHardwareProfile
from placement.hardware import AllToAll, ExpertTimes, HardwareProfile, Sends
from placement.hardware.profile import FORMAT, FORMAT_VERSION
from profiler.errors import InputNotFound, UnreadableInput
from profiler.files import write_text
from profiler.presets import find_preset, preset_names

KIND = "hardware"
SUFFIX = ".toml"
LARGEST_BYTES = 2**20
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Expert(BaseModel):
    model_config = STRICT

    fixed_s: float
    weight_bytes_per_s: float
    overlap: float
    flops_per_s: dict[str, float]


class _AllToAll(BaseModel):
    model_config = STRICT

    sends: Literal["per-gpu", "per-expert"]
    fixed_s: float
    nvlink_bytes_per_s: float
    rdma_bytes_per_s: float
    dispatch_bytes_per_value: float
    combine_bytes_per_value: float
    handled_bytes_per_s: float | None = None

    def value(self) -> AllToAll:
        return AllToAll(**{**self.model_dump(), "sends": Sends(self.sends)})


class _Document(BaseModel):
    model_config = STRICT

    format: Literal["moeplan-hardware"]
    format_version: Literal[1]
    name: str
    gpu: str
    memory_gib: float
    expert: _Expert
    prefill: _AllToAll
    decode: _AllToAll
    sources: dict[str, str]


def hardware_names() -> tuple[str, ...]:
    """Return the names of the profiles that come with moeplan."""
    return preset_names(KIND, suffix=SUFFIX)


def read_hardware(name: str) -> HardwareProfile:
    """Read a profile: a preset by its name, anything else as a file.

    Raises
    ------
    InputNotFound
        Neither a preset nor a file, naming the presets.
    UnreadableInput
        The file is no TOML text.
    BadHardwareProfile
        Naming the first figure that is missing, unknown or out of range.
    """
    path = Path(name)
    if not path.is_file():
        preset = find_preset(name, KIND, suffix=SUFFIX)
        if preset is None:
            raise InputNotFound(
                f"{name} is neither a file nor a hardware profile that moeplan has: {', '.join(hardware_names())}."
            )
        path = preset
    return parse_hardware(_parsed(path), name=path.name)


def known_hardware(name: str) -> HardwareProfile | None:
    """Return a profile that comes with moeplan, None where there is none of this name."""
    preset = find_preset(name, KIND, suffix=SUFFIX)
    return None if preset is None else parse_hardware(_parsed(preset), name=preset.name)


def parse_hardware(document: Mapping[str, Any], *, name: str) -> HardwareProfile:
    """Build a profile from a parsed file; ``name`` is what messages call it."""
    version = document.get("format_version")
    if document.get("format") != FORMAT:
        raise BadHardwareProfile(f'{name} is no hardware profile: it has no format = "{FORMAT}".')
    if isinstance(version, int) and not isinstance(version, bool) and version > FORMAT_VERSION:
        raise BadHardwareProfile(f"{name} has format version {version}; this moeplan reads up to {FORMAT_VERSION}.")
    try:
        parsed = _Document.model_validate(document)
    except ValidationError as error:
        raise BadHardwareProfile(_sentence(error, name=name)) from error
    try:
        return HardwareProfile(
            name=parsed.name,
            gpu=parsed.gpu,
            memory_gib=parsed.memory_gib,
            expert=ExpertTimes(**parsed.expert.model_dump()),
            prefill=parsed.prefill.value(),
            decode=parsed.decode.value(),
            sources=parsed.sources,
        )
    except BadHardwareProfile as error:
        raise BadHardwareProfile(f"{name}: {error.detail}") from error


def write_hardware(profile: HardwareProfile, path: Path) -> None:
    """Write a profile; the file appears whole or not at all.

    Raises
    ------
    OutputNotWritable
    """
    write_text(path, render_hardware(profile))


def render_hardware(profile: HardwareProfile) -> str:
    """Return the file's text."""
    plain: list[str] = []
    tables: list[str] = []
    for key, value in profile.to_dict().items():
        if isinstance(value, dict):
            tables.append(_rendered_table(key, value))
        else:
            plain.append(f"{key} = {_rendered(value)}")
    return "\n".join((*plain, "", *tables))


def _rendered_table(name: str, table: Mapping[str, Any]) -> str:
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = [f"[{name}]"]
    lines += [f"{json.dumps(key)} = {_rendered(value)}" for key, value in table.items() if key not in inner]
    lines += [f"\n{_rendered_table(f'{name}.{key}', value)}" for key, value in inner.items()]
    return "\n".join(lines) + "\n"


def _rendered(value: str | float) -> str:
    """Write a value as TOML; its basic strings are JSON's but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F") if isinstance(value, str) else repr(value)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise InputNotFound(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > LARGEST_BYTES:
        raise UnreadableInput(f"{path.name} is larger than {LARGEST_BYTES} bytes: it is no hardware profile.")
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"{path.name} is no TOML file: {str(error).rstrip('.')}.") from error


def _sentence(error: ValidationError, *, name: str) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] in ("missing", "extra_forbidden"):
        return f"{name}, {path}: {message}."
    found = repr(first["input"])
    return f"{name}, {path}: {message}, found {found if len(found) <= 60 else found[:57] + '...'}."
