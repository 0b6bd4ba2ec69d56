"""Routed tokens one by one: what counts cannot tell, namely which experts a token needs together.

``Tokens`` is a run of tokens, a piece of a stream or a whole sample. A token trace is any iterable of them that can be
gone through more than once: recordings hold up to 10^9 routed ids and are never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.demand import Sources
from placement.errors import BadTokens

NO_EXPERT = np.uint16(0xFFFF)
"""Filler in ``experts_LTK`` where a token has no routed expert (dense layer, padding)."""

Phase = Literal["prefill", "decode", "mixed"]

PHASE_NUMBERS: Mapping[Phase, int] = MappingProxyType({"mixed": 0, "prefill": 1, "decode": 2})
"""Phases as numbers; 0 where a single token's phase is unknown."""

UNKNOWN_STEP = -1


@dataclass(frozen=True, eq=False)
class Tokens:
    """A run of tokens with the experts that each was routed to.

    Attributes
    ----------
    experts_LTK : ndarray
        uint16 [L, T, K], read-only; :data:`NO_EXPERT` where there is none. Dense layers have none at all.
    experts : int
        Logical experts; ids are below this.
    home_T : ndarray or None
        int32 [T], GPU on which the token lives; None where that is unknown: tokens are then spread evenly over all.
    window_T : ndarray
        int32 [T], index of the token's window in the demand that was made from the same recordings.
    request_T : ndarray
        int64 [T], different in different inputs.
    step_T : ndarray
        int64 [T], engine step (forward pass), different in different inputs; :data:`UNKNOWN_STEP` where unknown.
    phase_T : ndarray
        uint8 [T], by :data:`PHASE_NUMBERS`.

    Raises
    ------
    BadTokens
        Naming what does not fit and where.
    """

    experts_LTK: npt.NDArray[np.uint16]
    experts: int
    home_T: npt.NDArray[np.int32] | None
    window_T: npt.NDArray[np.int32]
    request_T: npt.NDArray[np.int64]
    step_T: npt.NDArray[np.int64]
    phase_T: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        experts_LTK = np.asarray(self.experts_LTK)
        if experts_LTK.ndim != 3 or experts_LTK.dtype != np.uint16:
            raise BadTokens(
                f"experts have shape {experts_LTK.shape} of {experts_LTK.dtype}; [layers, tokens, k] of uint16 "
                "is needed."
            )
        wrong_LTK = (experts_LTK >= self.experts) & (experts_LTK != NO_EXPERT)
        if wrong_LTK.any():
            layer, token, column = (int(value) for value in np.argwhere(wrong_LTK)[0])
            raise BadTokens(
                f"layer {layer}, token {token}, column {column} names expert {experts_LTK[layer, token, column]}; ids "
                f"run from 0 to {self.experts - 1}."
            )
        object.__setattr__(self, "experts_LTK", frozen_view(experts_LTK))
        columns: dict[str, type[np.integer]] = {
            "window": np.int32,
            "request": np.int64,
            "step": np.int64,
            "phase": np.uint8,
        }
        for name, dtype in columns.items():
            self._freeze_column(f"{name}_T", dtype)
        if self.home_T is not None:
            self._freeze_column("home_T", np.int32)
        for name, values_T in (("home", self.home_T), ("window", self.window_T)):
            if values_T is not None and values_T.size and int(values_T.min()) < 0:
                token = int(values_T.argmin())
                raise BadTokens(f"token {token} has the {name} {int(values_T[token])}; it counts from 0.")

    def _freeze_column(self, name: str, dtype: type[np.integer]) -> None:
        values_T = np.asarray(getattr(self, name))
        if values_T.shape != (self.tokens,) or values_T.dtype.kind not in "iu":
            raise BadTokens(
                f"{name} has shape {values_T.shape} of {values_T.dtype}; one whole number per token is needed, "
                f"{self.tokens} in all."
            )
        object.__setattr__(self, name, frozen_view(values_T.astype(dtype, copy=False)))

    @property
    def layers(self) -> int:
        return int(self.experts_LTK.shape[0])

    @property
    def tokens(self) -> int:
        return int(self.experts_LTK.shape[1])

    @property
    def top_k(self) -> int:
        """Columns of ``experts_LTK``: the most experts that one token has in a layer."""
        return int(self.experts_LTK.shape[2])

    @property
    def sources(self) -> Sources:
        return "uniform" if self.home_T is None else "measured"

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        """Layers in which any token has an expert."""
        return tuple(np.flatnonzero((self.experts_LTK != NO_EXPERT).any(axis=(1, 2))).tolist())

    def pick(self, chosen_T: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Tokens:
        """Return some of the tokens, by mask or by index."""
        return replace(
            self,
            experts_LTK=self.experts_LTK[:, chosen_T],
            home_T=None if self.home_T is None else self.home_T[chosen_T],
            window_T=self.window_T[chosen_T],
            request_T=self.request_T[chosen_T],
            step_T=self.step_T[chosen_T],
            phase_T=self.phase_T[chosen_T],
        )

    def with_uniform_sources(self) -> Tokens:
        """Return the same tokens with their homes forgotten."""
        return replace(self, home_T=None)


TokenStream = Iterable[Tokens]
"""A token trace: pieces in order, the same each time it is gone through."""


@dataclass(frozen=True, eq=False)
class WindowTokens:
    """The tokens of one window of a trace, as a trace of that window alone.

    Attributes
    ----------
    stream : TokenStream
    window : int
    """

    stream: TokenStream
    window: int

    def __iter__(self) -> Iterator[Tokens]:
        for piece in self.stream:
            part = piece.pick(piece.window_T == self.window)
            if part.tokens:
                yield replace(part, window_T=np.zeros(part.tokens, dtype=np.int32))


def frozen_view(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return a read-only view: pieces of large recordings are not copied."""
    view = values.view()
    view.flags.writeable = False
    return view
