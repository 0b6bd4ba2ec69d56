"""How results are printed: tables for people, one JSON object for programs, warnings on standard error."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Column, Table

from placement.metrics import Metrics

METRIC_NAMES = (
    "local_gpu",
    "local_node",
    "imbalance",
    "balancedness",
    "sglang_balancedness",
    "overflow_share",
    "rerouted",
    "dropped",
)


TOKEN_METRIC_NAMES = ("gpus_per_token", "nodes_per_token", "active_experts")
"""Shown where a token trace is given."""

LONGEST_COMPLAINT = 1000
"""Characters of an error's sentence; an option's value can be of any length."""


class TextTable(Table):
    """A table of plain text: what recordings and file names hold can neither colour the terminal nor break a row."""

    def __init__(self, *columns: str, title: str) -> None:
        # On a narrow terminal names and figures are folded: cut short, nobody could tell local_gpu from local_node.
        super().__init__(
            *(Column(name, overflow="fold") for name in columns), title=printable(title), title_justify="left"
        )

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def printable(text: str) -> str:
    """Return text for a terminal: control characters, line breaks and what reorders text are written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def survive_any_text() -> None:
    """Let both output streams escape what their encoding lacks instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_line(text: str, *, file: TextIO | None = None) -> None:
    """Print exactly one line."""
    print(printable(text), file=file)


def complain(code: str, detail: str, *, remedies: Sequence[str] = ()) -> None:
    """Print an error on standard error: its sentence, then what can be done, one a line."""
    if len(detail) > LONGEST_COMPLAINT:
        half = LONGEST_COMPLAINT // 2
        detail = f"{detail[:half]} ... {detail[-half:]}"
    print_line(f"{code}: {detail}", file=sys.stderr)
    for number, remedy in enumerate(remedies, start=1):
        print(f"  {number}. {printable(remedy)}", file=sys.stderr)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object; NaN and infinity are refused rather than printed as invalid JSON."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


class _QuittableConsole(Console):
    """A console that leaves it to :func:`api.cli.app.run` to say what a reader that went away means."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that rich is handling


def print_table(table: Table) -> None:
    """Print a table; piped output is wide enough not to be cut."""
    _QuittableConsole(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(table)


def print_notices(notices: Sequence[Mapping[str, str]]) -> None:
    """Print warnings on standard error, one a line."""
    for notice in notices:
        print_line(f"warning {notice['code']}: {notice['detail']}", file=sys.stderr)


def metrics_table(rows: Mapping[str, Metrics], *, title: str) -> Table:
    """Build the comparison table: a column per layout, so that it fits a terminal, and a row per metric."""
    table = TextTable("", *rows, title=title)
    for name in METRIC_NAMES:
        table.add_row(name, *(number(getattr(metrics, name)) for metrics in rows.values()))
    if any(metrics.token_basis is not None for metrics in rows.values()):
        for name in TOKEN_METRIC_NAMES:
            if any(getattr(metrics, name) for metrics in rows.values()):
                table.add_row(name, *(_with_interval(metrics, name) for metrics in rows.values()))
    worst = [metrics.worst_window for metrics in rows.values()]
    table.add_row("imbalance of the worst window", *(number(window.imbalance) for window in worst))
    if any(len(metrics.windows) > 1 for metrics in rows.values()):
        table.add_row("worst window", *(window.name for window in worst))
    return table


def _with_interval(metrics: Metrics, name: str) -> str:
    """Print a figure from a token trace, with half its confidence interval where it was sampled."""
    value = number(getattr(metrics, name))
    interval = getattr(metrics.token_basis, f"{name}_interval", None)
    return value if interval is None else f"{value} ±{(interval[1] - interval[0]) / 2:.4f}"


def capacity_table(rows: Mapping[str, Metrics]) -> Table:
    """Build the table of capacity factors: what overflows at each, and what of it is dropped after rerouting."""
    table = TextTable("", *rows, title="share of demand above capacity factor x mean GPU load, and dropped of it")
    for place, at in enumerate(next(iter(rows.values())).capacity):
        capacity = [metrics.capacity[place] for metrics in rows.values()]
        table.add_row(f"overflow_share at {at.capacity_factor:g}", *(number(each.overflow_share) for each in capacity))
        table.add_row(f"dropped at {at.capacity_factor:g}", *(number(each.dropped) for each in capacity))
    for place, step in enumerate(next(iter(rows.values())).step_overflow):
        in_steps = [metrics.step_overflow[place] for metrics in rows.values()]
        at_factor = f"in {step.steps} {step.phase} steps at {step.capacity_factor:g}"
        table.add_row(f"overflow_share {at_factor}", *(number(each.overflow_share) for each in in_steps))
        table.add_row(f"dropped {at_factor}", *(number(each.dropped) for each in in_steps))
    return table


def windows_table(metrics: Metrics) -> Table:
    """Build the table of windows, the worst one marked."""
    shares = ("overflow_share", "rerouted", "dropped")
    table = TextTable("window", "routed_tokens", "local_gpu", "imbalance", *shares, "", title="windows")
    for window in metrics.windows:
        mark = "worst" if window.name == metrics.worst_window.name else ""
        cells = [number(getattr(window, name)) for name in ("local_gpu", "imbalance", *shares)]
        table.add_row(window.name, str(window.tokens), *cells, mark)
    return table


def number(value: float | None) -> str:
    """Print a share or ratio with four decimals, a dash where it is undefined."""
    return "-" if value is None else f"{value:.4f}"


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None] | None]:
    """Show a progress bar on a terminal; yield the function that takes the share done (0..1), or None."""
    if not sys.stderr.isatty():
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda share: progress.update(task, completed=share)
