"""Turning uploaded files into a moeplan trace, in a process of its own: they are of others, and may be anything."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from api.jobs.linked_files import file_name_of, linked
from api.jobs.task_process import Json
from api.loading import read_options
from profiler.inputs import open_inputs, trace_facts
from profiler.readers.options import ReadOptions
from profiler.readers.tensorrt_llm import is_statistics_folder
from profiler.writers.parquet import import_trace


def run(request: Json, progress: Callable[[float, str], None]) -> Json:
    """Read ``files`` (name and path of each) by ``read``, write the trace to ``out`` and say what it holds."""
    with tempfile.TemporaryDirectory(prefix="moeplan-import-") as folder:
        progress(0.0, "reading")
        files = linked(request["files"], Path(folder) / file_name_of(request["name"], otherwise="files"))
        readers = open_inputs(_inputs(files), _options(request["read"], Path(folder)))
        for reader in readers:
            reader.require_complete()
        out = Path(request["out"])
        import_trace(readers, out, progress=lambda share: progress(0.8 * share, "writing the trace"))
    return facts_of_trace(out, name=request["name"])


def facts_of_trace(path: Path, *, name: str) -> Json:
    """Return what a moeplan trace holds, and its warnings apart."""
    (reader,) = open_inputs([path], read_options())
    facts = trace_facts(reader)
    warnings = facts.pop("warnings")
    facts.pop("sha256")
    return {"facts": {**facts, "name": name}, "warnings": warnings}


def _inputs(files: Sequence[Path]) -> Sequence[Path]:
    folder = files[0].parent
    return [folder] if len(files) > 1 and is_statistics_folder(folder) else files


def _options(read: Json, folder: Path) -> ReadOptions:
    return read_options(
        model=_json_file(read.get("model"), folder / "config.json"),
        experts=read.get("experts"),
        ranks=read.get("ranks"),
        allow_partial=bool(read.get("allow_partial")),
        map_history=_json_file(read.get("map_history"), folder / "map_history.json"),
    )


def _json_file(value: object, path: Path) -> Path | None:
    if value is None:
        return None
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
