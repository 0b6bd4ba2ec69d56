"""Recordings of a service: sending them there, recording there, fetching them."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from api.client.connection import ServiceConnection, Upload
from api.client.events import finished
from api.client.names import is_id
from placement.errors import BadOption
from profiler.files import content_hash
from profiler.inputs import Recording, recordings
from profiler.json_file import read_json
from profiler.model_file import read_model_config

Progress = Callable[[float], None]

USABLE = ("waiting", "importing", "ready")
"""States of a trace that is, or will be, there."""


def upload(
    service: ServiceConnection,
    inputs: Sequence[Path],
    *,
    read: Mapping[str, Any],
    engine_id: str | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Have every recording at the service, read and ready; return them in the order of the inputs.

    Parameters
    ----------
    inputs
        Files, folders, and ids of traces that are there already. Rank files of one recording become one trace.
    read
        ``model``, ``experts``, ``ranks``, ``allow_partial``, ``map_history`` as on the command line.

    Raises
    ------
    InputNotFound, UnknownFormat, BadOption
        As :func:`profiler.inputs.open_inputs`; nothing was sent.
    CodedError
        What the service says, or its job.
    """
    files = [path for path in inputs if not is_id(path, "trc")]
    by_first = {recording.files[0]: recording for recording in recordings(files)} if files else {}
    fields = _fields(read, engine_id)
    traces = []
    for path in inputs:
        if is_id(path, "trc"):
            traces.append(service.get(f"/v1/traces/{path}"))
        elif path in by_first:
            traces.append(_sent(service, by_first[path], fields))
    for number, trace in enumerate(traces):
        if trace["state"] != "ready" and trace["job_id"] is not None:
            finished(service, trace["job_id"], progress=progress)
            traces[number] = service.get(f"/v1/traces/{trace['id']}")
    return traces


def capture(
    service: ServiceConnection,
    *,
    engine_id: str,
    limits: Mapping[str, int | float | None],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Let the service record from an engine; return the trace."""
    body = {"engine_id": engine_id, **{name: value for name, value in limits.items() if value is not None}}
    asked = service.post("/v1/traces/capture", body, once=secrets.token_hex(16)).json
    finished(service, asked["job_id"], progress=progress)
    trace: dict[str, Any] = service.get(f"/v1/traces/{asked['id']}")
    return trace


def download(service: ServiceConnection, trace_id: str, out: Path) -> None:
    """Write a stored recording as a moeplan trace (Parquet)."""
    service.download(f"/v1/traces/{trace_id}/content", out)


def _sent(service: ServiceConnection, recording: Recording, fields: Mapping[str, str]) -> dict[str, Any]:
    form = Upload(_files(recording), {**fields, "name": recording.name[:200]})
    # The same files sent again within a day are the same trace, unless it is gone or could not be read.
    told = json.dumps([content_hash(recording.files) if _one_file(recording) else _hashes(form), dict(form.fields)])
    same = hashlib.sha256(told.encode()).hexdigest()
    trace: dict[str, Any] = service.upload("/v1/traces", form, once=same).json
    trace = service.get(f"/v1/traces/{trace['id']}")
    if trace["state"] not in USABLE:
        trace = service.upload("/v1/traces", form, once=secrets.token_hex(16)).json
    return trace


def _one_file(recording: Recording) -> bool:
    return len(recording.files) == 1 and recording.files[0].is_file()


def _hashes(form: Upload) -> list[list[str]]:
    return [[name, content_hash([path])] for name, path in form.files]


def _files(recording: Recording) -> list[tuple[str, Path]]:
    """Name the files of a recording as the service takes them: plain names, all different."""
    paths = list(recording.files)
    if len(paths) == 1 and paths[0].is_dir():
        paths = sorted(path for path in paths[0].iterdir() if path.is_file() and not path.name.startswith("."))
    named: dict[str, Path] = {}
    for path in paths:
        name = re.sub(r"[^A-Za-z0-9._+@=,-]+", "-", path.name).lstrip("._+@=,-")[-200:] or "recording"
        if name in named:
            raise BadOption(f"{path} and {named[name]} would both be named {name} at the service; rename one.")
        named[name] = path
    return list(named.items())


def _fields(read: Mapping[str, Any], engine_id: str | None) -> dict[str, str]:
    fields: dict[str, str] = {}
    if read.get("model") is not None:
        fields["model"] = json.dumps(read_model_config(read["model"]))
    if read.get("map_history") is not None:
        fields["map_history"] = json.dumps(read_json(read["map_history"]))
    for name in ("experts", "ranks"):
        if read.get(name) is not None:
            fields[name] = str(read[name])
    if read.get("allow_partial"):
        fields["allow_partial"] = "true"
    if engine_id is not None:
        fields["engine_id"] = engine_id
    return fields
