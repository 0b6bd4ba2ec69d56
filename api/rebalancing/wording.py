"""Figures and times as sentences say them."""

from __future__ import annotations

from datetime import UTC, datetime

from api.rebalancing.evidence import Compared

UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def duration(seconds: float) -> str:
    """Return a length of time, like ``12 min`` or ``1.5 h``."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= size), (1.0, "s"))
    return f"{seconds / size:.3g} {unit}"


def clock(moment: datetime) -> str:
    """Return a moment to the minute, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def figure(compared: Compared) -> str:
    """Say what the plan and the running layout are worth on the held-out windows."""
    before, after = compared.values
    if compared.metric == "worst_window_imbalance":
        return (
            f"on the held-out windows the plan's worst imbalance is {after:.3f}, the running layout's {before:.3f} "
            "(1 is even)"
        )
    place = "home GPU" if compared.metric == "local_gpu" else "home node"
    return (
        f"on the held-out windows {after:.1%} of routed tokens stay on their {place} with the plan, {before:.1%} with "
        "the running layout"
    )


def gain(compared: Compared) -> str:
    """Return the gain with its unit."""
    return _amount(compared.gain, compared.metric)


def least_gain(limit: float, compared: Compared) -> str:
    """Return a least gain with its unit."""
    return _amount(limit, compared.metric)


def bytes_of(amount: int) -> str:
    """Return bytes in the largest binary unit that gives a number of at least 1."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if amount >= 1024**power:
            return f"{amount / 1024**power:.3g} {unit}"
    return f"{amount} bytes"


def _amount(value: float, metric: str) -> str:
    return f"{value:.3f} of imbalance" if metric == "worst_window_imbalance" else f"{100 * value:.3g} points"
