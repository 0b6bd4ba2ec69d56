"""Numbers as people read them."""

from __future__ import annotations

NARROW_SPACE = "\N{NARROW NO-BREAK SPACE}"
ABSENT = "\N{EN DASH}"


def percent(share: float | None, *, digits: int = 1) -> str:
    """Return a share 0..1 as ``53.6 %``."""
    return ABSENT if share is None else f"{100 * share:.{digits}f}{NARROW_SPACE}%"


def fine_percent(share: float | None) -> str:
    """Return a share that is often small as ``0.03 %``."""
    return percent(share, digits=2)


def points(difference: float) -> str:
    """Return a difference of shares as ``6.4 points``, never as zero where there is one."""
    value = abs(100 * difference)
    return f"{value:.1f} points" if value >= 0.05 else "less than 0.1 points"


def ratio(value: float | None, *, digits: int = 3) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def tenths(value: float | None) -> str:
    return ratio(value, digits=1)


def times(value: float) -> str:
    """Return a multiple as ``2.41 x`` (with the multiplication sign), with fewer digits the larger it is."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}{NARROW_SPACE}\N{MULTIPLICATION SIGN}"


def count(value: int) -> str:
    return f"{value:,}"


def byte_size(size_bytes: int | None) -> str:
    """Return a size in decimal units, ``5.3 GB``."""
    if size_bytes is None:
        return ABSENT
    value, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f}{NARROW_SPACE}B" if units[0] == "B" else f"{value:.3g}{NARROW_SPACE}{units[0]}"


def ranges(values: tuple[int, ...]) -> str:
    """Return ascending numbers as ``0-2, 5, 7-9``."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}\N{EN DASH}{b}" for a, b in runs) or ABSENT
