"""What the readers of per_pass and per_token recordings have in common: rank files, and whether all are there."""

from __future__ import annotations

from functools import cached_property

from placement.notice import Notice
from profiler.errors import MissingRanks
from profiler.files import content_hash
from profiler.readers.counts import missing_ranks_notice
from profiler.readers.options import ReadOptions
from profiler.readers.sglang_map import SlotMaps
from profiler.readers.sglang_ranks import RankFiles
from profiler.trace import TraceHeader


class RankFilesReader:
    """The part of a :class:`profiler.trace.TraceReader` that does not depend on the recorder's mode.

    Parameters
    ----------
    ranks : RankFiles
    maps : SlotMaps
        The layouts that ids are read with.
    options : ReadOptions
    header : TraceHeader
    missing : tuple of int
        Ranks whose tokens are missing from the recording.
    notices : tuple of Notice
        Without the one about missing ranks.
    """

    def __init__(
        self,
        *,
        ranks: RankFiles,
        maps: SlotMaps,
        options: ReadOptions,
        header: TraceHeader,
        missing: tuple[int, ...],
        notices: tuple[Notice, ...],
    ) -> None:
        self._ranks = ranks
        self._maps = maps
        self._options = options
        self._header = header
        self._missing = missing
        self._notices = notices

    @property
    def header(self) -> TraceHeader:
        return self._header

    @property
    def name(self) -> str:
        return self._ranks.name

    @cached_property
    def content_hash(self) -> str:
        return content_hash([file.path for file in self._ranks.files])

    @property
    def notices(self) -> tuple[Notice, ...]:
        if not self._missing:
            return self._notices
        return (*self._notices, missing_ranks_notice(self.name, self._missing))

    def facts(self) -> dict[str, object]:
        """Return what this format says beyond the header."""
        return {
            "ranks": list(self._ranks.ranks),
            "missing_ranks": list(self._ranks.missing),
            "passes": len(self._ranks.groups),
            "slots": int(self._maps.last.map_LP.shape[1]),
            "layouts": len(self._maps.periods),
        }

    def require_complete(self) -> None:
        """Raise :class:`MissingRanks` where files of some ranks are missing and the caller did not allow it."""
        if self._missing and not self._options.allow_partial:
            raise MissingRanks(missing_ranks_notice(self.name, self._missing).detail)
