"""What is fuzzed: everything that reads what others wrote. Bytes go in; a value or one coded error comes out.

An archive's own checksums stop random bytes at its door, so zip-based targets take the *members* instead
(:func:`members_of`) and pack them here.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from api.loading import read_model, read_topology
from api.service.topology_text import costs_from_text
from api.settings import read_settings
from placement.errors import CodedError
from placement.model_shape import ModelShape
from profiler.engine.contract import Placement, PluginHealth
from profiler.engine.contract_demand import DemandAnswer, DemandOptions, DemandState
from profiler.engine.contract_measured import Measured
from profiler.engine.contract_push import PushAnswer, PushRequest
from profiler.engine.json_fields import ContractViolation
from profiler.engine.routed_ids import routed_request
from profiler.engine.sample_prompts import read_prompts
from profiler.engine.server_facts import server_facts
from profiler.formats.reader import read_layout
from profiler.hardware.profile_file import read_hardware
from profiler.inputs import open_inputs, trace_facts
from profiler.json_file import parse_json
from profiler.plan_file import read_plan
from profiler.readers.options import ReadOptions

MEMBER = b"\n\xff== "
"""Stands before each member: then its name, a line break, and its content."""

PART = b"\n\xff## "
"""Stands between the files of a folder that are archives themselves."""

SHAPE = ModelShape(layers=2, experts=4, top_k=2, moe_layers=(0, 1))

Target = Callable[[bytes], None]


def members_of(data: bytes) -> list[tuple[str, bytes]]:
    """Cut bytes into names and contents."""
    found = []
    for part in data.split(MEMBER)[1:]:
        name, _, content = part.partition(b"\n")
        found.append((name.decode("utf-8", errors="replace"), content))
    return found


def joined(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return bytes from which :func:`members_of` gets the members back."""
    return b"".join(MEMBER + name.encode() + b"\n" + content for name, content in members)


def zipped(members: Iterable[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in members:
            # A name that no archive can have is nothing that a reader could see.
            with suppress(UnicodeEncodeError, ValueError):
                archive.writestr(zipfile.ZipInfo(name or "x"), content, compression)
    return packed.getvalue()


def _in_file(name: str, content: bytes, act: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="moeplan-fuzz-") as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        with suppress(CodedError):
            act(file)


def _read_all(path: Path) -> None:
    """Read a recording as ``trace info`` does: header, every chunk, every fact."""
    for reader in open_inputs([path], ReadOptions()):
        json.dumps(trace_facts(reader), allow_nan=False)
        reader.require_complete()


def any_recording(data: bytes) -> None:
    """Read a file whose format is told from its content."""
    _in_file("recording", data, _read_all)


def json_counts(data: bytes) -> None:
    _in_file("counts.json", data, _read_all)


def rank_csv(data: bytes) -> None:
    _in_file("rank_0.csv", data, _read_all)


def parquet(data: bytes) -> None:
    _in_file("trace.parquet", data, _read_all)


def npz(data: bytes) -> None:
    _in_file("recording.npz", zipped(members_of(data)), _read_all)


def sglang_pt(data: bytes) -> None:
    _in_file("expert_distribution_recorder_1.pt", zipped(members_of(data)), _read_all)


def sglang_ranks(data: bytes) -> None:
    """Read a folder of rank files, two at most, and the history of layouts beside them."""
    parts = data.split(PART)
    with tempfile.TemporaryDirectory(prefix="moeplan-fuzz-") as folder:
        dumps, history = Path(folder) / "dumps", Path(folder) / "history.json"
        dumps.mkdir()
        for rank, part in enumerate(parts[:2]):
            (dumps / f"expert_distribution_recorder_1_{rank}.pt").write_bytes(zipped(members_of(part)))
        if len(parts) > 2:
            history.write_bytes(parts[2])
        with suppress(CodedError):
            for reader in open_inputs([dumps], ReadOptions(map_history=history if len(parts) > 2 else None)):
                json.dumps(trace_facts(reader), allow_nan=False)
                reader.require_complete()


def vllm_load(data: bytes) -> None:
    _in_file("loads.jsonl", data, _read_all)


def tensorrt_llm(data: bytes) -> None:
    """Read a folder of statistics."""
    with tempfile.TemporaryDirectory(prefix="moeplan-fuzz-") as folder:
        for name, content in members_of(data):
            plain = name.replace("/", "_").replace("\0", "_")[:100]
            if plain not in ("", ".", "..") and plain.isascii():
                (Path(folder) / plain).write_bytes(content)
        with suppress(CodedError):
            _read_all(Path(folder))


def layout(data: bytes) -> None:
    for name in ("layout.json", "layout.yaml"):
        _in_file(name, data, lambda file: read_layout(file, gpus=2))


def plan_file(data: bytes) -> None:
    _in_file("plan.json", data, read_plan)


def model_config(data: bytes) -> None:
    _in_file("config.json", data, read_model)


def hardware_profile(data: bytes) -> None:
    _in_file("profile.toml", data, lambda file: read_hardware(str(file)))


def settings_file(data: bytes) -> None:
    _in_file("moeplan.toml", data, read_settings)


def prompts(data: bytes) -> None:
    _in_file("prompts.jsonl", data, read_prompts)


def cost_matrix(data: bytes) -> None:
    _in_file("costs.json", data, lambda file: read_topology(file, gpus=2, nodes=1))


def topology_text(data: bytes) -> None:
    with suppress(CodedError):
        costs_from_text(data.decode("utf-8", errors="replace"))


ANSWERS: tuple[Callable[[Any], object], ...] = (
    PluginHealth.from_json,
    Placement.from_json,
    DemandOptions.from_json,
    DemandState.from_json,
    DemandAnswer.from_json,
    Measured.from_json,
    PushRequest.from_json,
    PushAnswer.from_json,
    lambda message: server_facts(message) if isinstance(message, dict) else None,  # the client has looked
    lambda message: routed_request(message, SHAPE),
)


def engine_answer(data: bytes) -> None:
    """Read what an engine answered, as every kind of answer; what is read is written and read again."""
    try:
        message = parse_json(data.decode("utf-8", errors="replace"), name="answer")
    except CodedError:
        return
    for read in ANSWERS:
        with suppress(CodedError, ContractViolation):
            read(message)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        any_recording,
        cost_matrix,
        engine_answer,
        hardware_profile,
        json_counts,
        layout,
        model_config,
        npz,
        parquet,
        plan_file,
        prompts,
        rank_csv,
        settings_file,
        sglang_pt,
        sglang_ranks,
        tensorrt_llm,
        topology_text,
        vllm_load,
    )
}
