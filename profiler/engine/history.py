"""Layouts that engines ran before a push, kept in small files so that any later command can go back.

The client keeps nothing in memory between commands and the engine keeps no earlier map, so each push first writes
one file, ``<folder>/<engine>/<time>-<layout>.json``, and writes its outcome into it afterwards. A file for each push
needs no lock between two clients on one host.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from profiler.engine.contract import Placement
from profiler.engine.json_fields import ContractViolation, Fields
from profiler.engine.map_rules import layout_hash, map_from_json
from profiler.errors import BadJson, OutputNotWritable
from profiler.files import write_text
from profiler.json_file import MAX_JSON_BYTES, read_json

Outcome = Literal["started", "applied", "failed"]

FORMAT = "moeplan-layout-history"
FORMAT_VERSION = 1
KEPT_PUSHES = 20
"""Latest pushes remembered for each engine, beside the first one: the layout before it can always be gone back to."""

MAX_HISTORY_BYTES = 4 * MAX_JSON_BYTES


@dataclass(frozen=True, eq=False)
class RememberedPush:
    """One push and what the engine was before it.

    Attributes
    ----------
    path : Path
        Its file.
    url : str
        The engine.
    pushed_at : str
        UTC, ISO 8601.
    outcome : {"started", "applied", "failed"}
        ``started`` stays when the client was ended before it knew; ``applied`` means verified.
    before : Placement
        The engine as it was read before, with checksums unless the outcome is ``applied``.
    pushed_LP : ndarray
        int32 [L, P], the map that was pushed.
    """

    path: Path
    url: str
    pushed_at: str
    outcome: Outcome
    before: Placement
    pushed_LP: npt.NDArray[np.int32]

    @property
    def pushed_hash(self) -> str:
        return layout_hash(self.pushed_LP)

    def explains(self, placement: Placement) -> bool:
        """Whether the engine is where this push may have left it: every layer runs the map pushed or the one before."""
        if placement.map_LP.shape != self.pushed_LP.shape:
            return False
        is_pushed_L = (placement.map_LP == self.pushed_LP).all(axis=1)
        is_before_L = (placement.map_LP == self.before.map_LP).all(axis=1)
        return bool((is_pushed_L | is_before_L).all())

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "engine_url": self.url,
            "pushed_at": self.pushed_at,
            "outcome": self.outcome,
            "before": self.before.to_json(),
            "pushed": self.pushed_LP.tolist(),
        }


class LayoutHistory:
    """Remembered pushes in a folder.

    Parameters
    ----------
    folder : Path
        Created when the first push is remembered.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> LayoutHistory:
        """Return the user's own: under ``MOEPLAN_DATA_DIR``, else in the folder for program state.

        That is ``$XDG_STATE_HOME/moeplan``, by default ``~/.local/state/moeplan``.
        """
        chosen = environment.get("MOEPLAN_DATA_DIR")
        state = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return cls((Path(chosen) if chosen else Path(state) / "moeplan") / "layouts")

    def begin(self, url: str, before: Placement, pushed_LP: npt.NDArray[np.int32]) -> RememberedPush:
        """Remember a push that is about to begin; the file is on disk when this returns.

        Raises
        ------
        OutputNotWritable
            Nothing may be pushed then.
        """
        folder = self._folder_of(url)
        name = f"{time.time_ns():020d}-{layout_hash(pushed_LP)[:12]}.json"
        push = RememberedPush(folder / name, url, datetime.now(UTC).isoformat(), "started", before, pushed_LP)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OutputNotWritable(f"{folder} cannot be made: {error.strerror}.") from error
        _write(push)
        for old in self._files(url)[1:-KEPT_PUSHES]:
            old.unlink(missing_ok=True)
        return push

    def finish(self, push: RememberedPush, outcome: Outcome) -> None:
        """Write down how a push ended; the checksums are kept only where it may have to be taken back."""
        before = replace(push.before, checksums=None) if outcome == "applied" else push.before
        _write(replace(push, outcome=outcome, before=before))

    def forget(self, push: RememberedPush) -> None:
        """Drop a push that moved nothing."""
        push.path.unlink(missing_ok=True)

    def pushes(self, url: str) -> tuple[RememberedPush, ...]:
        """Return the remembered pushes into an engine, newest first.

        Raises
        ------
        BadJson
            Naming a file that was damaged.
        """
        return tuple(_read(path) for path in reversed(self._files(url)))

    def _folder_of(self, url: str) -> Path:
        return self.folder / hashlib.sha256(url.encode()).hexdigest()[:16]

    def _files(self, url: str) -> list[Path]:
        return sorted(self._folder_of(url).glob("*.json"))


def _write(push: RememberedPush) -> None:
    write_text(push.path, json.dumps(push.to_json(), separators=(",", ":")))


def _read(path: Path) -> RememberedPush:
    try:
        fields = Fields(read_json(path, max_bytes=MAX_HISTORY_BYTES), "history")
        fields.text("format", allowed=(FORMAT,))
        if fields.integer("format_version") != FORMAT_VERSION:
            raise ContractViolation("it was written by another version of moeplan.")
        outcome = fields.text("outcome", allowed=("started", "applied", "failed"))
        return RememberedPush(
            path=path,
            url=fields.text("engine_url"),
            pushed_at=fields.text("pushed_at"),
            outcome=outcome,  # type: ignore[arg-type]  # checked against the allowed ones
            before=Placement.from_json(fields.value("before")),
            pushed_LP=map_from_json(fields.value("pushed"), "history.pushed"),
        )
    except ContractViolation as violation:
        raise BadJson(f"{path} is no layout history of this moeplan: {violation.detail}") from None
