"""``--workers``: what it may say, and the workers it stands for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from api.workers.fan_out import Crew
from api.workers.processes import ProcessCrew
from api.workers.ray_cluster import RayCrew
from placement.errors import BadOption

MAX_WORKERS = 1024

Workers = int | Literal["ray"]
"""1 for this process alone, more for so many processes beside it, or the machines of a Ray cluster."""


def parse_workers(text: str) -> Workers:
    """Read ``--workers``.

    Raises
    ------
    BadOption
        It is neither ``ray`` nor a number of workers.
    """
    if text == "ray":
        return "ray"
    if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_WORKERS:
        return int(text)
    raise BadOption(f"--workers is {text[:40]!r}; it is a number from 1 to {MAX_WORKERS}, or ray.")


@contextmanager
def open_workers(workers: Workers) -> Iterator[Crew | None]:
    """Start workers and end them afterwards, however the block is left; None stands for this process alone.

    Raises
    ------
    RayMissing, RayUnreachable
        See :class:`RayCrew`.
    """
    if workers == 1:
        yield None
        return
    crew: Crew = RayCrew() if workers == "ray" else ProcessCrew(workers)
    try:
        yield crew
    finally:
        crew.close()
