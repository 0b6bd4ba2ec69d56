"""Writing layouts for engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from placement.errors import LayoutMismatch
from placement.layout import Layout
from profiler.errors import ExportFormatUnknown, ExportNameInvalid
from profiler.files import write_bytes
from profiler.formats import sglang


@dataclass(frozen=True)
class Exporter:
    """A writer of one engine's layout file.

    Attributes
    ----------
    suffix : str
        Ending the engine needs to take the file for a layout.
    render : callable
        From layout to the file's bytes.
    """

    suffix: str
    render: Callable[[Layout], bytes]


EXPORTERS: Mapping[str, Exporter] = MappingProxyType({"sglang": Exporter(sglang.FILE_SUFFIX, sglang.render_map)})
"""Writers by the name that ``moeplan export --format`` takes."""


def export_layout(layout: Layout, *, format: str, out: Path, decoder_layers: int | None = None) -> None:
    """Write a layout as an engine reads it; the file appears whole or not at all.

    Parameters
    ----------
    layout
        Rows for all decoder layers, dense ones included.
    format
        A key of :data:`EXPORTERS`.
    out
        File to write.
    decoder_layers
        Decoder layers of the engine's model, None where unknown.

    Raises
    ------
    ExportFormatUnknown, ExportNameInvalid, LayoutMismatch, OutputNotWritable
    """
    if format not in EXPORTERS:
        raise ExportFormatUnknown(f"there is no export to {format!r}; there is {', '.join(EXPORTERS)}.")
    exporter = EXPORTERS[format]
    if out.suffix != exporter.suffix:
        raise ExportNameInvalid(
            f"{format} takes a file for a layout only when its name ends in {exporter.suffix}; write "
            f"{out.stem}{exporter.suffix} instead of {out.name}."
        )
    if decoder_layers is not None and layout.layers != decoder_layers:
        raise LayoutMismatch(
            f"the layout has {layout.layers} rows, the model {decoder_layers} decoder layers; {format} needs a row for "
            "every decoder layer: plan again with the model's config."
        )
    write_bytes(out, exporter.render(layout))
