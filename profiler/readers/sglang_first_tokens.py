"""Do requests that begin alike still go the same way?

The first token of a request attends to itself alone, so its experts depend on nothing but the token. If from some pass
on every token that begins a request again is found with other experts, the experts did not change: the layout did.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_TOKENS = 4096
"""Different first tokens that are remembered."""
MIN_CHANGED = 2
"""One alone could be an adapter or an image in place of its token."""
_SAME_SHARE, _OTHER_SHARE = 0.5, 0.1
"""Layers with the same set of experts: rounding changes a few, another layout nearly all."""


class FirstTokens:
    """Remembers where first tokens went, and between which steps they went the same or another way."""

    def __init__(self) -> None:
        self._last_seen: dict[int, tuple[int, npt.NDArray[np.uint16]]] = {}
        self._changed: list[tuple[int, int]] = []
        self._unchanged: list[tuple[int, int]] = []

    def observe(
        self,
        sorted_LTX: npt.NDArray[np.uint16],
        *,
        token_T: npt.NDArray[np.int32],
        position_T: npt.NDArray[np.int32],
        step: int,
    ) -> None:
        """Take in the tokens of a step, with the experts of each token in ascending order."""
        for row in np.flatnonzero((position_T == 0) & (token_T >= 0)).tolist():
            token, experts_LX = int(token_T[row]), sorted_LTX[:, row]
            if token in self._last_seen:
                before, before_LX = self._last_seen[token]
                self._compare(before, before_LX, step, experts_LX)
            if token in self._last_seen or len(self._last_seen) < MAX_TOKENS:
                self._last_seen[token] = (step, experts_LX.copy())

    def _compare(
        self, before: int, before_LX: npt.NDArray[np.uint16], step: int, experts_LX: npt.NDArray[np.uint16]
    ) -> None:
        same = float((before_LX == experts_LX).all(axis=1).mean())
        if before < step and same >= _SAME_SHARE:
            self._unchanged.append((before, step))
        elif before < step and same <= _OTHER_SHARE:
            self._changed.append((before, step))

    def turning_step(self) -> int | None:
        """Return a step from which on all first tokens that were seen before went another way, if there is one."""
        if len(self._changed) < MIN_CHANGED:
            return None
        earliest = max(before for before, _ in self._changed) + 1
        latest = min(step for _, step in self._changed)
        candidates = {latest, *(before for before, _ in self._unchanged), *(step + 1 for _, step in self._unchanged)}
        before_U, step_U = np.array(self._unchanged, dtype=np.int64).reshape(-1, 2).T
        for turn in sorted(candidates):
            if earliest <= turn <= latest and not ((before_U < turn) & (turn <= step_U)).any():
                return turn
        return None
