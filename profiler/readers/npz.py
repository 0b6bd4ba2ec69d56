"""NumPy archives: ``counts`` by window, or a token trace in ``topk`` and ``request_id``."""

from __future__ import annotations

from pathlib import Path

from profiler.errors import BadCountShape, BadCountType, UnknownFormat
from profiler.readers.counts import CountsReader, RecordedCounts, whole_counts
from profiler.readers.npz_archive import NpzArchive
from profiler.readers.npz_tokens import TokenNpzReader
from profiler.readers.options import ReadOptions


def open_npz(path: Path, options: ReadOptions) -> CountsReader | TokenNpzReader:
    """Open an ``.npz`` file.

    Counts: ``counts`` [W, L, E] or [L, E], with optional ``window_names`` [W], ``layer_ids`` [L] and ``topk``.
    Tokens: ``topk`` [L, T, K] (negative: no expert) and ``request_id`` [T], with optional ``num_experts``,
    ``layer_ids`` [L], ``position`` [T], ``step`` [T], ``source`` [T] or ``req_source`` [R], ``domain`` [T] or
    ``req_domain`` [R], ``domain_names`` and ``req_prompt_tokens`` [R]; R requests are numbered from 0.

    Raises
    ------
    UnknownFormat
        Neither of them; the message lists the arrays found.
    UnreadableDump, UnsafePickle, ArchiveInflates, BadCountType, BadCountShape, InputsDisagree
    NonFiniteCount, NegativeCount, CountOutOfRange, ExpertIdRange
    """
    archive = NpzArchive(path)
    members = archive.members
    has_tokens = "topk" in members and len(members["topk"].shape) > 1
    if has_tokens and "counts" in members:
        raise BadCountShape(f"{path.name} holds both counts and a token trace (topk); one of them is needed.")
    if "counts" in members:
        recorded = _recorded_counts(archive, path.name)
        return CountsReader(name=path.name, paths=[path], recorded=recorded, options=options)
    if has_tokens and "request_id" in members:
        return TokenNpzReader(path, archive, options)
    found = ", ".join(f"{name} {list(member.shape)}" for name, member in list(members.items())[:8]) or "no arrays"
    raise UnknownFormat(
        f"{path.name} holds {found}; counts [windows, layers, experts], or topk [layers, tokens, k] with request_id "
        "[tokens], are needed."
    )


def _recorded_counts(archive: NpzArchive, name: str) -> RecordedCounts:
    shape = archive.members["counts"].shape
    if len(shape) not in (2, 3) or 0 in shape:
        raise BadCountShape(f"counts of {name} has shape {list(shape)}; [windows, layers, experts] is needed.")
    if archive.members["counts"].dtype.kind not in "iuf":
        raise BadCountType(
            f"counts of {name} holds {archive.members['counts'].dtype} values; whole numbers are needed."
        )
    counts = whole_counts(archive.read("counts"), where=f"counts of {name}")
    counts_WRX = counts[None] if counts.ndim == 2 else counts
    windows, rows, _ = counts_WRX.shape
    if "window_names" in archive.members:
        names = archive.read_texts("window_names", count=windows)
    else:
        names = (name,) if windows == 1 else tuple(f"window {window}" for window in range(windows))
    return RecordedCounts(
        counts_WRX,
        _unique(names),
        (0,) * windows,
        labels_R=archive.layer_labels(rows),
        top_k=archive.read_number("topk") if "topk" in archive.members else None,
        facts={"arrays": archive.summary()},
    )


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    # Chunks of one name are one window, but here every entry is a window of its own.
    return names if len(set(names)) == len(names) else tuple(f"{name} ({index})" for index, name in enumerate(names))
