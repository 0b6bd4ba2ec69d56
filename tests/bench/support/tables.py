"""Benchmark tables: a head with protocol and machine, then rows."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from rich.console import Console
from rich.table import Table


def print_head(title: str, *, protocol: Sequence[str]) -> None:
    """Say what is measured, how and on which machine."""
    print(f"# {title}")
    for line in protocol:
        print(f"- {line}")
    print(
        f"- machine: {os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, "
        f"OR-Tools {version('ortools')}, NumPy {version('numpy')}"
    )


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Print a table as rows come in wide enough not to be cut; floats with four decimals."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=180, markup=False, highlight=False).print(table)
