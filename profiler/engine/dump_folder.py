"""The folder that SGLang's recorder writes to: which files are new, whole, and of the dump that was asked for.

The recorder's routes do not say what they wrote. It names its files after the clock of the engine's host and writes
straight to the final name (``srt/eplb/expert_distribution.py``, SGLang 0.5.16 and 0.5.23), so a file is taken only
when it was not there before, its name's time fits the engine's clock, and its content is whole.
"""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.errors import DumpAmbiguous, DumpIncomplete, DumpNotFound, InputNotFound, UnreadableDump
from profiler.files import reason

DUMP_FILE = re.compile(r"expert_distribution_recorder_(?P<time>\d+(?:\.\d+)?)(?:_(?P<rank>\d+))?\.pt")
"""Names that the recorder gives: with a rank in the modes ``per_pass`` and ``per_token``."""

CLOCK_TOLERANCE_S = 5.0
"""The engine's clock is known to the second, and hosts of one engine differ a little."""

POLL_S = 0.2

Listing = Mapping[str, tuple[int, int]]
"""Size and time of change in nanoseconds of every file of the recorder, by name."""


@dataclass(frozen=True)
class Expected:
    """What a dump is made of.

    Attributes
    ----------
    ranks : int or None
        Number of rank files; None for the one file of mode ``stat``.
    not_before_s : float or None
        The engine's clock when the dump was asked for; None where it is unknown.
    """

    ranks: int | None
    not_before_s: float | None

    @property
    def files(self) -> int:
        return 1 if self.ranks is None else self.ranks


class DumpFolder:
    """A folder that an engine's recorder writes to, read from here.

    Raises
    ------
    InputNotFound, UnreadableDump
        It is not there, is no folder, or may not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise InputNotFound(
                f"{path} does not exist; give the folder that SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR names on the "
                "engine's host (by default /tmp), as it is seen from here."
            )
        self.listing()

    def listing(self) -> Listing:
        """Return the recorder's files that are there now."""
        found = {}
        try:
            for entry in self.path.iterdir():
                if DUMP_FILE.fullmatch(entry.name):
                    status = entry.stat()
                    found[entry.name] = (status.st_size, status.st_mtime_ns)
        except FileNotFoundError:  # removed while it was listed
            return self.listing() if self.path.exists() else {}
        except OSError as error:
            raise UnreadableDump(f"{self.path} cannot be read: {reason(error)}.") from error
        return found

    def wait_for_dump(
        self,
        before: Listing,
        expected: Expected,
        *,
        limit_s: float,
        same: Callable[[Sequence[Path]], bool],
    ) -> tuple[Path, ...]:
        """Wait until a dump is there and whole.

        Parameters
        ----------
        before
            The listing of the moment before the dump was asked for.
        expected
        limit_s
            How long to wait.
        same
            Whether several files of mode ``stat`` hold the same record.

        Returns
        -------
        tuple of Path
            By rank.

        Raises
        ------
        DumpNotFound, DumpIncomplete, DumpAmbiguous
        """
        deadline_s = time.monotonic() + limit_s
        sizes: Listing = {}
        while True:
            listing = self.listing()
            new = self._new(listing, before, expected)
            settled = [name for name in new if sizes.get(name) == listing[name] and self._is_whole(name)]
            if len(settled) == len(new) >= expected.files:
                return self._one_dump(settled, expected, same)
            if time.monotonic() > deadline_s:
                raise self._missing(listing, before, expected, settled, limit_s=limit_s)
            sizes = listing
            time.sleep(POLL_S)

    def appeared(self, before: Listing, expected: Expected) -> list[str]:
        """Return dumps that were written since ``before``, by others than us."""
        return self._new(self.listing(), before, expected)

    def _new(self, listing: Listing, before: Listing, expected: Expected) -> list[str]:
        return sorted(
            name for name in listing if listing[name] != before.get(name) and _is_of_this_dump(name, expected)
        )

    def _is_whole(self, name: str) -> bool:
        try:
            return zipfile.is_zipfile(self.path / name)
        except OSError:
            return False

    def _one_dump(
        self, names: Sequence[str], expected: Expected, same: Callable[[Sequence[Path]], bool]
    ) -> tuple[Path, ...]:
        paths = [self.path / name for name in names]
        if expected.ranks is None:
            if len(paths) > 1 and not same(paths):
                raise self._ambiguous(names)
            return (paths[0],)
        by_rank = {_rank(path.name): path for path in paths}
        if len(by_rank) != len(paths):
            raise self._ambiguous(names)
        return tuple(by_rank[rank] for rank in sorted(by_rank))

    def _ambiguous(self, names: Sequence[str]) -> DumpAmbiguous:
        return DumpAmbiguous(
            f"{self.path} got files of several dumps at once ({', '.join(names)}), so which are of this engine is "
            "unknown; let every engine write to a folder of its own and record again.",
            remedies=("or read the right ones with moeplan trace import FILE...",),
        )

    def _missing(
        self, listing: Listing, before: Listing, expected: Expected, settled: Sequence[str], *, limit_s: float
    ) -> DumpNotFound | DumpIncomplete:
        new = self._new(listing, before, expected)
        unfinished = [name for name in new if name not in settled]
        if unfinished:
            return DumpIncomplete(
                f"{self.path / unfinished[0]} is still not whole after {limit_s:g} s: its writer was stopped, or the "
                "disk is full."
            )
        if new and expected.ranks is not None:
            absent = sorted(set(range(expected.ranks)) - {_rank(name) for name in new})
            return DumpIncomplete(
                f"ranks {absent} of {expected.ranks} wrote no file into {self.path} within {limit_s:g} s: do all "
                "hosts of the engine share it?"
            )
        return DumpNotFound(
            f"the engine has dumped its record, but no new file is in {self.path} after {limit_s:g} s"
            f"{self._look_alikes(listing, before)}: is this the folder that SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR "
            "names on the engine's host?"
        )

    def _look_alikes(self, listing: Listing, before: Listing) -> str:
        stale = sorted(name for name in listing if listing[name] != before.get(name))
        return f" ({stale[0]} appeared, but was recorded at another time or in another mode)" if stale else ""


def _is_of_this_dump(name: str, expected: Expected) -> bool:
    """Tell by a file's name whether it can be of the dump: its mode and its time."""
    match = DUMP_FILE.fullmatch(name)
    if match is None or (match["rank"] is None) != (expected.ranks is None):
        return False
    return expected.not_before_s is None or float(match["time"]) >= expected.not_before_s - CLOCK_TOLERANCE_S


def _rank(name: str) -> int:
    match = DUMP_FILE.fullmatch(name)
    return int(match["rank"]) if match is not None and match["rank"] is not None else 0
