"""SGLang's ``.pt`` dumps of every recorder mode: a file, or a folder of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from profiler.errors import InputsDisagree, UnknownFormat
from profiler.readers.options import ReadOptions
from profiler.readers.pt_archive import load_pt
from profiler.readers.sglang_folder import RecordingReader, SglangFolderReader
from profiler.readers.sglang_map import slot_maps
from profiler.readers.sglang_per_pass import SglangPerPassReader
from profiler.readers.sglang_per_token import SglangPerTokenReader
from profiler.readers.sglang_ranks import join_ranks
from profiler.readers.sglang_records import RANK_FILE, read_rank_file
from profiler.readers.sglang_stat import SglangStatReader

MAX_CLOCK_DIFFERENCE_S = 60.0
"""Files of one recording are written together; more than this apart they are of two."""

SglangReader = RecordingReader | SglangFolderReader


def open_sglang_pt(path: Path, options: ReadOptions) -> SglangReader:
    """Open a dump of SGLang's expert distribution recorder.

    Parameters
    ----------
    path : Path
        A ``.pt`` file; or a folder, of which all ``.pt`` files are read: rank files of one recording together, every
        recording as a window of its own.
    options : ReadOptions

    Raises
    ------
    InputNotFound, UnknownFormat
        Nothing there, or nothing that the recorder writes.
    UnreadableDump, ArchiveInflates, UnsafePickle
        See :func:`profiler.readers.pt_archive.load_pt`.
    BadCountShape, BadCountType, NonFiniteCount, NegativeCount, CountOutOfRange
        Counts that are none.
    InputsDisagree
        Files, or a file and ``options``, describe different models.
    MapChanged
        The layout changed while recording.
    """
    if not path.is_dir():
        return open_rank_files([path], options, name=path.name)
    recordings = group_recordings(
        file for file in path.iterdir() if file.suffix in (".pt", ".pth") and not file.name.startswith(".")
    )
    if not recordings:
        raise UnknownFormat(f"the folder {path} holds no .pt file.")
    name = path.resolve().name  # the path may be "."
    if len(recordings) == 1:
        return open_rank_files(recordings[0], options, name=name)
    return SglangFolderReader(
        name, [open_rank_files(files, options, name=recording_name(files)) for files in recordings]
    )


def group_recordings(paths: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Group ``.pt`` files by recording.

    Each rank names its file after its own clock, so the files of one recording differ by fractions of a second: in
    the order of time, a recording ends where a rank comes again or a minute passes. Files of other names are
    recordings of their own.

    Returns
    -------
    list of tuple of Path
        Files that are no rank files first, by name, then recordings by time.
    """
    timed: list[tuple[float, int, Path]] = []
    single: list[tuple[Path, ...]] = []
    for file in sorted(paths):
        match = RANK_FILE.fullmatch(file.name)
        if match is None:
            single.append((file,))
        else:
            timed.append((float(match["time"]), int(match["rank"]), file))
    recordings: list[dict[int, Path]] = []
    before = 0.0
    for time, rank, file in sorted(timed):
        if not recordings or rank in recordings[-1] or time - before > MAX_CLOCK_DIFFERENCE_S:
            recordings.append({})
        recordings[-1][rank] = file
        before = time
    return single + [tuple(by_rank[rank] for rank in sorted(by_rank)) for by_rank in recordings]


def recording_name(files: Sequence[Path]) -> str:
    match = RANK_FILE.fullmatch(files[0].name)
    return files[0].name if match is None else f"expert_distribution_recorder_{match['time']}"


def open_rank_files(files: Sequence[Path], options: ReadOptions, *, name: str) -> RecordingReader:
    loaded = load_pt(files[0])
    kind = _kind(loaded, files[0])
    if kind == "stat":
        return SglangStatReader(files[0], loaded, options, name=name)
    rank_files = [read_rank_file(files[0], loaded)]
    del loaded
    for file in files[1:]:
        more = load_pt(file)
        if _kind(more, file) != kind:
            raise InputsDisagree(f"{file.name} is a dump of another kind than {files[0].name}.")
        rank_files.append(read_rank_file(file, more))
    ranks = join_ranks(rank_files, options, name=name)
    maps = slot_maps(ranks.files, options, name=name)
    if any(file.mode == "per_token" for file in ranks.files):
        return SglangPerTokenReader(ranks, maps, options)
    return SglangPerPassReader(ranks, maps, options)


def _kind(loaded: Any, file: Path) -> Literal["stat", "records"]:
    keys = loaded.keys() if isinstance(loaded, dict) else ()
    if "logical_count" in keys:
        return "stat"
    if "records" in keys:
        return "records"
    if "physical_to_logical_map" in keys:
        raise UnknownFormat(f"{file.name} is a layout, not a recording.")
    found = f"the keys {', '.join(map(str, list(keys)[:8]))}" if keys else f"a {type(loaded).__name__}"
    raise UnknownFormat(f"{file.name} holds {found}; SGLang's recorder writes logical_count or records.")
