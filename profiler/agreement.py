"""Several inputs taken as one recording: do they describe the same model, and what do they have in common?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from profiler.errors import InputsDisagree
from profiler.trace import TraceHeader, TraceReader

T = TypeVar("T")


def agreed_header(readers: Sequence[TraceReader]) -> TraceHeader:
    """Return what all inputs have in common.

    Layers, experts and top-k (where known) must be equal. Source ranks, engine and model survive only where all
    inputs agree; domain names are united in order of appearance. The kind is tokens when all inputs hold tokens.

    Raises
    ------
    InputsDisagree
        Naming two inputs, what differs, and by how much.
    """
    first = readers[0]
    for reader in readers[1:]:
        _require_equal(first, reader, "decoder layers", first.header.layers, reader.header.layers)
        _require_equal(first, reader, "experts", first.header.experts, reader.header.experts)
    with_top_k = [reader for reader in readers if reader.header.top_k is not None]
    for reader in with_top_k[1:]:
        _require_equal(
            with_top_k[0], reader, "experts per token", with_top_k[0].header.top_k or 0, reader.header.top_k or 0
        )
    headers = [reader.header for reader in readers]
    return TraceHeader(
        kind="tokens" if all(header.kind == "tokens" for header in headers) else "counts",
        layers=first.header.layers,
        experts=first.header.experts,
        top_k=with_top_k[0].header.top_k if with_top_k else None,
        source_ranks=_common([header.source_ranks for header in headers], otherwise=None),
        engine=_common([header.engine for header in headers], otherwise=""),
        engine_version=_common([header.engine_version for header in headers], otherwise=""),
        model=_common([header.model for header in headers], otherwise=""),
        domain_names=tuple(dict.fromkeys(name for header in headers for name in header.domain_names)),
    )


def unique_window_names(windows: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return one name per (input, window): the window's own, with the input before it where two windows share one."""
    times = Counter(window for _, window in windows)
    names = [window if times[window] == 1 or window == source else f"{source}: {window}" for source, window in windows]
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(unique)


def _require_equal(one: TraceReader, other: TraceReader, what: str, left: int, right: int) -> None:
    if left != right:
        raise InputsDisagree(
            f"{one.name} has {left} {what}, {other.name} has {right} ({abs(left - right)} apart): recordings of one "
            "model are needed. Where only the numbering of layers differs, give --model."
        )


def _common(values: Sequence[T], *, otherwise: T) -> T:
    return values[0] if all(value == values[0] for value in values) else otherwise
