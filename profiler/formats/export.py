"""Writing layouts for engines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from placement.layout import Layout
from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.errors import ExportFormatUnknown, ExportNameInvalid
from profiler.files import write_bytes
from profiler.formats import sglang, tensorrt_llm, vllm, vllm_ascend


@dataclass(frozen=True)
class Exporter:
    """A writer of one engine's layout file.

    Attributes
    ----------
    suffix : str
        Ending the engine needs to take the file for a layout.
    render : callable
        From layout and model (None where unknown) to the file's bytes.
    notice : callable or None
        What a user must know before believing that the engine runs the layout.
    """

    suffix: str
    render: Callable[[Layout, ModelShape | None], bytes]
    notice: Callable[[Layout], Notice] | None = None


EXPORTERS: Mapping[str, Exporter] = MappingProxyType(
    {
        "sglang": Exporter(sglang.FILE_SUFFIX, sglang.render_map),
        "vllm": Exporter(vllm.FILE_SUFFIX, vllm.render_map, vllm.notice),
        "tensorrt-llm": Exporter(tensorrt_llm.FILE_SUFFIX, tensorrt_llm.render_map, tensorrt_llm.notice),
        "vllm-ascend": Exporter(vllm_ascend.FILE_SUFFIX, vllm_ascend.render_map),
    }
)
"""Writers by the name that ``moeplan export --format`` takes."""


def render_layout(layout: Layout, *, format: str, out: Path, model: ModelShape | None = None) -> bytes:
    """Return a layout's file as an engine reads it, after everything was checked but whether it can be written.

    Parameters and errors are those of :func:`export_layout`.
    """
    if format not in EXPORTERS:
        raise ExportFormatUnknown(f"there is no export to {format!r}; there is {', '.join(EXPORTERS)}.")
    exporter = EXPORTERS[format]
    if out.suffix != exporter.suffix:
        raise ExportNameInvalid(
            f"{format} takes a file for a layout only when its name ends in {exporter.suffix}; write "
            f"{out.stem}{exporter.suffix} instead of {out.name}."
        )
    return exporter.render(layout, model)


def export_layout(layout: Layout, *, format: str, out: Path, model: ModelShape | None = None) -> tuple[Notice, ...]:
    """Write a layout as an engine reads it; the file appears whole or not at all.

    Parameters
    ----------
    layout
        Rows for all decoder layers, dense ones included.
    format
        A key of :data:`EXPORTERS`.
    out
        File to write.
    model
        The engine's model, needed by all formats but ``sglang``.

    Returns
    -------
    tuple of Notice
        What the engine may do with the file.

    Raises
    ------
    ExportFormatUnknown, ExportNameInvalid, ExportNeedsModel, LayoutMismatch, OutputNotWritable
    DuplicateOnDevice
        ``vllm-ascend`` cannot hold an expert twice on a device.
    """
    write_bytes(out, render_layout(layout, format=format, out=out, model=model))
    notice = EXPORTERS[format].notice
    return () if notice is None else (notice(layout),)


def keep_replaced(out: Path, content: bytes) -> Path | None:
    """Copy the file that is about to be replaced by other content beside it, under a name made of its own content.

    An engine that was started with it must be able to go back to it.

    Returns
    -------
    Path or None
        The copy; None where nothing lies there, or the same.

    Raises
    ------
    OutputNotWritable
    """
    if not out.is_file():
        return None
    before = out.read_bytes()
    if before == content:
        return None
    kept = out.with_name(f"{out.stem}-{hashlib.sha256(before).hexdigest()[:12]}{out.suffix}")
    write_bytes(kept, before)
    return kept
