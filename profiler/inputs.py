"""Opening recordings: which of the supported formats a file or folder is in is told from its content."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

from placement.errors import BadOption
from profiler.errors import InputNotFound, UnknownFormat, UnreadableDump
from profiler.files import reason, require_regular_file
from profiler.readers.json_counts import open_json_counts
from profiler.readers.npz import open_npz
from profiler.readers.options import ReadOptions
from profiler.readers.parquet import open_parquet
from profiler.readers.rank_csv import is_rank_csv, open_rank_csvs
from profiler.readers.tensorrt_llm import META_NAME, is_statistics_folder, open_tensorrt_llm
from profiler.readers.vllm_load import is_vllm_load, open_vllm_load
from profiler.trace import TraceReader
from profiler.trace_facts import recorded_facts

__all__ = ["OpenedInput", "Recording", "open_inputs", "recordings", "trace_facts"]

Format = Literal["sglang-pt", "json", "npz", "parquet", "rank-csv", "tensorrt-llm", "vllm-load"]

SUPPORTED = (
    "SGLang dumps (.pt, one file or a folder of rank files), JSON counts, .npz (counts, or topk with request_id), rank "
    "CSVs, a TensorRT-LLM statistics folder, vLLM load records (.jsonl), moeplan traces (.parquet)"
)
HEAD_BYTES = 4096


class OpenedInput(TraceReader, Protocol):
    """A reader as :func:`open_inputs` returns it."""

    def facts(self) -> dict[str, object]:
        """Return what this format says beyond the header."""
        ...

    def require_complete(self) -> None:
        """Raise where the recording must not be planned from as it is (ranks missing, for example)."""
        ...


def open_inputs(paths: Sequence[Path], options: ReadOptions) -> list[OpenedInput]:
    """Open every input and read its header.

    Rank files of one recording (SGLang dumps, CSVs) are read together, also when given file by file. Whether several
    inputs describe the same model is checked where they are added up (:func:`profiler.agreement.agreed_header`), so
    that differing ones can still be looked at side by side.

    Parameters
    ----------
    paths : sequence of Path
        Files or folders.
    options : ReadOptions

    Raises
    ------
    InputNotFound, UnknownFormat, UnreadableDump
        Nothing there, in no supported format (the message says what was found), or damaged.
    BadOption
        No path, or one given twice.
    """
    return [_open(recording, options) for recording in recordings(paths)]


@dataclass(frozen=True)
class Recording:
    """The files of one recording, as they are read together.

    Attributes
    ----------
    files : tuple of Path
        One file or folder, or several rank files.
    format : str
    name : str
        What its windows and messages are called by.
    """

    files: tuple[Path, ...]
    format: Format
    name: str


def recordings(paths: Sequence[Path]) -> list[Recording]:
    """Say which files or folders belong to one recording; nothing but the beginning of files is read.

    Raises
    ------
    InputNotFound, UnknownFormat, UnreadableDump, BadOption
        As :func:`open_inputs`.
    """
    if not paths:
        raise BadOption("no input is given; one recording at least is needed.")
    resolved = [_resolved(path) for path in paths]
    for index, path in enumerate(resolved):
        if path in resolved[:index]:
            raise BadOption(f"{paths[index]} is given twice; its traffic would count double.")
    formats = [_format_of(path) for path in paths]
    found: list[Recording] = []
    for path, kind in zip(paths, formats, strict=True):
        siblings = [
            other
            for other, its in zip(paths, formats, strict=True)
            if its == kind and other.is_file() and other.parent.resolve() == path.parent.resolve()
        ]
        together = _recorded_together(path, kind, siblings)
        if together[0] == path:  # the first file of a recording stands for all
            found.append(Recording(tuple(together), kind, _name_of(together, kind)))
    return found


def trace_facts(reader: OpenedInput) -> dict[str, object]:
    """Return what a recording holds, ready for JSON; streams it once.

    Returns
    -------
    dict
        See :func:`profiler.trace_facts.recorded_facts`.
    """
    return recorded_facts(reader, extra=reader.facts())


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links, before Python 3.13
        raise UnreadableDump(f"{path} cannot be read: {reason(error)}.") from error


def _recorded_together(path: Path, found: Format, siblings: Sequence[Path]) -> Sequence[Path]:
    """Return the files of the recording that a file belongs to, out of those given from its folder."""
    if path.is_dir():
        return [path]
    if found == "rank-csv":
        return siblings
    if found == "sglang-pt":
        from profiler.readers.sglang_pt import group_recordings

        return next(group for group in group_recordings(siblings) if path in group)
    return [path]


def _name_of(files: Sequence[Path], found: Format) -> str:
    first, *more = files
    if not more:
        return first.resolve().name if first.is_dir() else first.name
    if found == "rank-csv":
        return first.parent.resolve().name
    from profiler.readers.sglang_pt import recording_name

    return recording_name(files)


def _open(recording: Recording, options: ReadOptions) -> OpenedInput:
    first, *more = recording.files
    if recording.format == "rank-csv" and first.is_file():
        return open_rank_csvs(recording.files, options, name=recording.name)
    if more:
        from profiler.readers.sglang_pt import open_rank_files

        return open_rank_files(recording.files, options, name=recording.name)
    return _OPENERS[recording.format](first, options)


def _format_of(path: Path) -> Format:
    try:
        if path.is_dir():
            return _format_of_folder(path)
        if path.is_symlink() and not path.exists():
            raise InputNotFound(f"{path} points to {path.readlink()}, which does not exist.")
        return _format_of_file(require_regular_file(path))
    except OSError as error:
        raise UnreadableDump(f"{path} cannot be read: {reason(error)}.") from error


def _format_of_file(path: Path) -> Format:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not head:
        raise UnreadableDump(f"{path.name} is empty.")
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"PK"):
        return _format_of_zip(path)
    if is_rank_csv(head.splitlines()[0]):
        return "rank-csv"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] in (b"{", b"["):
        return "vllm-load" if is_vllm_load(start) else "json"
    # What is left has no mark of its own: pickles of old torch versions, and files cut or overwritten at the start.
    by_suffix = _BY_SUFFIX.get(path.suffix.lower())
    if by_suffix is None:
        raise UnknownFormat(f"{path.name} {_description(path, head)}; supported are {SUPPORTED}.")
    return by_suffix


def _format_of_zip(path: Path) -> Format:
    """Tell torch archives and NumPy archives apart by their members; a cut one is told by its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError):
        return _BY_SUFFIX.get(path.suffix.lower(), "npz")
    if any(name.endswith("data.pkl") for name in names):
        return "sglang-pt"
    if any(name.endswith(".npy") for name in names):
        return "npz"
    shown = ", ".join(names[:4]) or "nothing"
    raise UnknownFormat(f"{path.name} is a zip archive of {shown}; supported are {SUPPORTED}.")


def _format_of_folder(folder: Path) -> Format:
    if is_statistics_folder(folder):
        return "tensorrt-llm"
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    dumps = [path for path in files if path.suffix in (".pt", ".pth")]
    tables = [path for path in files if path.suffix == ".csv" and _starts_as_rank_csv(path)]
    if dumps and tables:
        raise UnknownFormat(f"{folder} holds both SGLang dumps and rank CSVs; give the files of one recording.")
    if dumps:
        return "sglang-pt"
    if tables:
        return "rank-csv"
    names = ", ".join(path.name for path in files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
    if (folder / META_NAME).is_file():
        raise UnknownFormat(
            f"{folder} has {META_NAME} but no rank<r>.safetensors beside it; was the recording finished?"
        )
    raise UnknownFormat(
        f"{folder} holds {names or 'no files'}; as a folder, SGLang rank files, rank CSVs and TensorRT-LLM statistics "
        "are read. Other files are given one by one."
    )


def _starts_as_rank_csv(path: Path) -> bool:
    with path.open("rb") as file:
        return is_rank_csv(file.readline(HEAD_BYTES))


def _description(path: Path, head: bytes) -> str:
    if head.startswith(b"\x93NUMPY"):
        return "is a single NumPy array (.npy), which does not say what it is; store it as counts in an .npz"
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        return "is compressed; unpack it first"
    if path.suffix == ".safetensors":
        return "is one rank's file; give the folder with its meta_info.json"
    return f"starts with {head[:16]!r}"


def _open_sglang_pt(path: Path, options: ReadOptions) -> OpenedInput:
    from profiler.readers.sglang_pt import open_sglang_pt  # imports torch: seconds

    return open_sglang_pt(path, options)


def _open_rank_csv_folder(folder: Path, options: ReadOptions) -> OpenedInput:
    tables = [path for path in sorted(folder.glob("*.csv")) if path.is_file() and _starts_as_rank_csv(path)]
    return open_rank_csvs(tables, options, name=folder.resolve().name)


_BY_SUFFIX: Mapping[str, Format] = MappingProxyType(
    {".pt": "sglang-pt", ".pth": "sglang-pt", ".json": "json", ".npz": "npz", ".parquet": "parquet"}
)
_OPENERS: Mapping[Format, Callable[[Path, ReadOptions], OpenedInput]] = MappingProxyType(
    {
        "sglang-pt": _open_sglang_pt,
        "json": open_json_counts,
        "npz": open_npz,
        "parquet": open_parquet,
        "rank-csv": _open_rank_csv_folder,
        "tensorrt-llm": open_tensorrt_llm,
        "vllm-load": open_vllm_load,
    }
)
