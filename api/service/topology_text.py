"""Link costs from the text of ``nvidia-smi topo -m``."""

from __future__ import annotations

import re

from api.errors import BadRequest

COSTS = {"X": 0.0, "NV": 1.0, "PIX": 2.0, "PXB": 3.0, "PHB": 4.0, "NODE": 5.0, "SYS": 6.0}
"""By the legend of nvidia-smi, from NVLink (any number of links) to across sockets: the further, the dearer."""

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
GPU = re.compile(r"GPU(\d+)")


def costs_from_text(text: str) -> list[list[float]]:
    """Return the cost from every GPU to every other, of one machine.

    Columns of network cards and CPU affinities are left out.

    Raises
    ------
    BadRequest
        Naming the line that is not what ``nvidia-smi topo -m`` prints.
    """
    rows: dict[int, list[float]] = {}
    columns: list[int] | None = None
    for number, line in enumerate(COLOURS.sub("", text).splitlines(), start=1):
        cells = line.split()
        if not cells:
            continue
        if columns is None:
            columns = [int(found[1]) for cell in cells if (found := GPU.fullmatch(cell))] or None
            continue
        head = GPU.fullmatch(cells[0])
        if head is None:
            continue
        links = cells[1 : 1 + len(columns)]
        if len(links) < len(columns):
            raise BadRequest(f"line {number} has {len(links)} links; there are {len(columns)} GPUs.")
        rows[int(head[1])] = [_cost(link, number) for link in links]
    if columns is None or columns != list(range(len(columns))) or sorted(rows) != columns:
        raise BadRequest(
            f"the text has rows of the GPUs {sorted(rows)} and columns of {columns or []}; both must be all GPUs, as "
            "nvidia-smi topo -m prints them."
        )
    return [rows[gpu] for gpu in columns]


def _cost(link: str, line: int) -> float:
    name = "NV" if re.fullmatch(r"NV\d+", link) else link
    if name not in COSTS:
        raise BadRequest(f"line {line}: {link[:20]!r} is no link; there are NV#, {', '.join(list(COSTS)[2:])} and X.")
    return COSTS[name]
