"""Stored files under the names that readers and reports go by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from api.store.files import plain_name


def linked(files: Sequence[Mapping[str, str]], folder: Path) -> list[Path]:
    """Link files, each with a ``name`` and a ``path``, into a new folder; return them there in the same order.

    Raises
    ------
    BadPath
        A name is more than a name.
    """
    folder.mkdir(mode=0o700)
    links = []
    for file in files:
        link = folder / plain_name(file["name"])
        link.symlink_to(Path(file["path"]).absolute())
        links.append(link)
    return links
