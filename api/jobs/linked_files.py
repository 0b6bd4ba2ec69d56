"""Stored files under the names that readers and reports go by."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from api.store.files import plain_name


def linked(files: Sequence[Mapping[str, str]], folder: Path) -> list[Path]:
    """Link files, each with a ``name`` and a ``path``, into a new folder; return them there in the same order.

    Equal files of two ranks are stored once: they become two files here, since readers take two links to one file for
    an input that is given twice.

    Raises
    ------
    BadPath
        A name is more than a name.
    """
    folder.mkdir(mode=0o700)
    links: dict[Path, Path] = {}
    for file in files:
        link, stored = folder / plain_name(file["name"]), Path(file["path"]).absolute()
        if stored in links.values():
            shutil.copyfile(stored, link)
        else:
            link.symlink_to(stored)
        links[link] = stored
    return list(links)


def file_name_of(name: str, *, otherwise: str) -> str:
    """Return a file name that is as near as possible to what people call a thing."""
    return re.sub(r"[^A-Za-z0-9._+@=,-]+", "-", name).lstrip("._+@=,-")[:180] or otherwise
