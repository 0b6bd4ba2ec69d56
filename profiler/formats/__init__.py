"""Layout files of engines: which expert every slot holds.

:func:`read_layout` takes what ``LAYOUT`` means on the command line; :data:`EXPORTERS` holds the writers by format name.
"""

from profiler.formats.export import EXPORTERS, Exporter, export_layout, keep_replaced, render_layout
from profiler.formats.reader import read_layout

__all__ = ["EXPORTERS", "Exporter", "export_layout", "keep_replaced", "read_layout", "render_layout"]
