"""Every layer with experts routes every token to top-k experts, so all of them count the same.

Where they do not, a part of the picks was not counted (vllm-project/vllm#21883 is one way it happens), and a plan
would be made for traffic that looks different from layer to layer for no reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placement.notice import Notice

SHOWN_LAYERS = 8

MISCOUNTED_SHARE = 0.01
"""Of a window's routed tokens: by so much its counts may miss what its tokens should have, without a word."""


def conservation_notices(
    sums_WL: npt.NDArray[np.int64], window_names: Sequence[str], expected_W: Sequence[int | None]
) -> tuple[Notice, ...]:
    """Return the warning ``TOKEN_CONSERVATION``, if some layers count more or less than they should.

    Parameters
    ----------
    sums_WL : ndarray
        int64 [W, L], routed tokens of each window and layer; layers without any (dense ones) are not judged.
    window_names : sequence of str
    expected_W : sequence of int or None
        Tokens x top-k of each window. Where unknown, the sum that most layers have (of equally frequent ones the
        largest: picks get lost, not invented).

    Returns
    -------
    tuple of Notice
        None or one, naming the layers of the window that is furthest off.
    """
    worst: tuple[float, str] = (0.0, "")
    windows_off = 0
    for sums_L, name, expected in zip(sums_WL, window_names, expected_W, strict=True):
        busy = np.flatnonzero(sums_L)
        if busy.size == 0:
            continue
        right = expected or _most_common(sums_L[busy])
        off = busy[sums_L[busy] != right]
        if off.size == 0:
            continue
        windows_off += 1
        share = float(np.abs(sums_L[off] - right).max()) / right
        if share > worst[0]:
            basis = "tokens x top-k" if expected else "the commonest sum"
            worst = (share, f"{_layers(off, sums_L)} in window {name!r}, where {right} are right ({basis})")
    if not windows_off:
        return ()
    more = windows_off - 1
    others = "" if more == 0 else "; one more window is off" if more == 1 else f"; {more} more windows are off"
    detail = (
        "layers count different numbers of routed tokens, so some were lost or counted twice: "
        f"{worst[1]}, off by up to {worst[0]:.2%}{others}."
    )
    return (Notice("TOKEN_CONSERVATION", detail),)


def token_notices(
    sums_WL: npt.NDArray[np.int64], window_names: Sequence[str], tokens_W: Sequence[int], *, top_k: int | None
) -> tuple[Notice, ...]:
    """Return the warning ``TOKEN_CONSERVATION``, if layers count something else than the tokens that were computed.

    Parameters
    ----------
    sums_WL : ndarray
        int64 [W, L], routed tokens of each window and layer; layers without any (dense ones) are not judged.
    window_names : sequence of str
    tokens_W : sequence of int
        Tokens of each window, as the engine says.
    top_k : int or None
        None, where it is not known, compares nothing.

    Returns
    -------
    tuple of Notice
        None or one, naming the window that is furthest off.
    """
    off: list[tuple[float, str]] = []
    for sums_L, name, tokens in zip(sums_WL, window_names, tokens_W, strict=True):
        right, busy_L = tokens * (top_k or 0), sums_L[sums_L > 0]
        if not right or not busy_L.size:
            continue
        counted = _most_common(busy_L)
        share = abs(counted - right) / right
        if share > MISCOUNTED_SHARE:
            off.append(
                (share, f"{name} has {counted} routed tokens in most layers, and its {tokens} tokens make {right}")
            )
    if not off:
        return ()
    share, worst = max(off)
    more = len(off) - 1
    others = "" if more == 0 else "; one more window is off" if more == 1 else f"; {more} more windows are off"
    detail = f"the engine's counts and its tokens do not add up: {worst} (x top-k), off by {share:.1%}{others}."
    return (Notice("TOKEN_CONSERVATION", detail),)


def _most_common(sums: npt.NDArray[np.int64]) -> int:
    times: Counter[int] = Counter(int(value) for value in sums)
    return max(times, key=lambda value: (times[value], value))


def _layers(off: npt.NDArray[np.intp], sums_L: npt.NDArray[np.int64]) -> str:
    shown = ", ".join(f"layer {layer} has {sums_L[layer]}" for layer in off[:SHOWN_LAYERS])
    return shown if off.size <= SHOWN_LAYERS else f"{shown} and {off.size - SHOWN_LAYERS} more layers"
