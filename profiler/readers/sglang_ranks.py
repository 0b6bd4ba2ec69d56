"""The rank files of one recording, side by side: which ranks are missing, and which passes belong together."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement.notice import Notice
from profiler.errors import InputsDisagree
from profiler.readers.options import ReadOptions
from profiler.readers.sglang_records import MAX_RANKS, PassRecord, RankFile


@dataclass(frozen=True, eq=False)
class PassGroup:
    """What all ranks recorded of one forward pass.

    Attributes
    ----------
    step : int
        Number of the pass in the recording, from 0, whatever ids the engine gave.
    pass_id : int
        The engine's number.
    records : tuple of (int, PassRecord)
        Rank and record, by rank; a rank may have several (two micro-batches) or none.
    """

    step: int
    pass_id: int
    records: tuple[tuple[int, PassRecord], ...]

    def first_of_each_rank(self) -> dict[int, PassRecord]:
        return {rank: record for rank, record in reversed(self.records)}


@dataclass(frozen=True, eq=False)
class RankFiles:
    """The files of one recording, by rank.

    Attributes
    ----------
    name : str
    files : tuple of RankFile
    missing : tuple of int
        Ranks that must have recorded and have no file.
    groups : tuple of PassGroup
        Passes in order.
    notices : tuple of Notice
        ``PASSES_NOT_ALIGNED``, ``PASS_IDS_RESTARTED``.
    """

    name: str
    files: tuple[RankFile, ...]
    missing: tuple[int, ...]
    groups: tuple[PassGroup, ...]
    notices: tuple[Notice, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(file.rank for file in self.files)


def join_ranks(files: Sequence[RankFile], options: ReadOptions, *, name: str) -> RankFiles:
    """Put the files of one recording side by side.

    A rank is known to be missing when the caller expects it, when a higher rank has a file, or when the records say
    how large the all-to-all group is. A single file of rank 0 that says nothing is taken as the whole recording.

    Raises
    ------
    InputsDisagree
        Files of different modes, two of one rank, or a rank beyond the number expected.
    """
    ordered = tuple(sorted(files, key=lambda file: file.rank))
    modes = {file.mode for file in ordered if file.passes}
    if len(modes) > 1:
        raise InputsDisagree(f"{name} holds files of the modes {' and '.join(sorted(modes))}; a recording has one.")
    ranks = [file.rank for file in ordered]
    for rank, following in itertools.pairwise(ranks):
        if rank == following:
            raise InputsDisagree(f"{name} holds two files of rank {rank}; give one recording at a time.")
    highest = max(ranks)
    if highest >= MAX_RANKS:
        raise InputsDisagree(f"{name} has a file of rank {highest}; ranks up to {MAX_RANKS - 1} are read.")
    if options.expected_ranks is not None and highest >= options.expected_ranks:
        raise InputsDisagree(f"{name} has a file of rank {highest}, but {options.expected_ranks} ranks are expected.")
    known = [highest + 1, options.expected_ranks or 0, *(file.group_ranks or 0 for file in ordered)]
    missing = tuple(sorted(set(range(max(known))) - set(ranks)))
    groups = tuple(_groups(ordered))
    return RankFiles(name, ordered, missing, groups, tuple(_notices(ordered, groups, name)))


def _groups(files: Sequence[RankFile]) -> Iterator[PassGroup]:
    by_key: defaultdict[tuple[int, int], list[tuple[int, PassRecord]]] = defaultdict(list)
    for file in files:
        for run, entry in _with_runs(file):
            by_key[run, entry.pass_id].append((file.rank, entry))
    for step, (run, pass_id) in enumerate(sorted(by_key)):
        yield PassGroup(step, pass_id, tuple(by_key[run, pass_id]))


def _with_runs(file: RankFile) -> Iterator[tuple[int, PassRecord]]:
    """Number the stretches in which pass ids do not fall."""
    run, before = 0, -1
    for entry in file.passes:
        run += entry.pass_id < before
        before = entry.pass_id
        yield run, entry


def _notices(files: Sequence[RankFile], groups: Sequence[PassGroup], name: str) -> Iterator[Notice]:
    restarts = max((run for file in files for run, _ in _with_runs(file)), default=0)
    if restarts:
        yield Notice(
            "PASS_IDS_RESTARTED",
            f"{name}: the engine's pass ids start again {restarts} times in the recording; steps are numbered on.",
        )
    partial = sum(len({rank for rank, _ in group.records}) < len(files) for group in groups)
    if partial:
        yield Notice(
            "PASSES_NOT_ALIGNED",
            f"{name}: {partial} of {len(groups)} passes were not recorded by all {len(files)} ranks: the ranks did not "
            "start or stop at the same pass.",
        )
