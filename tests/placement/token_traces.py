"""Small token traces for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from placement.tokens import UNKNOWN_STEP, Tokens


def some_tokens(
    experts_LTK: Any,
    *,
    experts: int,
    home: Any = None,
    window: Any = None,
    request: Any = None,
    step: Any = None,
    phase: Any = None,
) -> Tokens:
    """Build tokens; what is left out is one window, a request per token, unknown steps and phases."""
    topk_LTK = np.asarray(experts_LTK, dtype=np.uint16)
    count = topk_LTK.shape[1]
    return Tokens(
        experts_LTK=topk_LTK,
        experts=experts,
        home_T=None if home is None else np.asarray(home),
        window_T=np.zeros(count, dtype=np.int32) if window is None else np.asarray(window),
        request_T=np.arange(count) if request is None else np.asarray(request),
        step_T=np.full(count, UNKNOWN_STEP) if step is None else np.asarray(step),
        phase_T=np.zeros(count, dtype=np.uint8) if phase is None else np.asarray(phase),
    )


def cut(tokens: Tokens, size: int) -> list[Tokens]:
    """Cut tokens into pieces of at most ``size``."""
    return [tokens.pick(np.arange(start, min(start + size, tokens.tokens))) for start in range(0, tokens.tokens, size)]
