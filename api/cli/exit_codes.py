"""Exit codes of the command line."""

from __future__ import annotations

from placement.errors import CodedError, Infeasible

DONE = 0
BAD_INPUT = 2
INFEASIBLE = 3
TARGET_MISSED = 4
NOT_READY = 5
INTERRUPTED = 130
TERMINATED = 143


def exit_code_of(error: CodedError) -> int:
    """Return 3 where no layout meets all limits, 2 for everything else that was wrong with the input."""
    return INFEASIBLE if isinstance(error, Infeasible) else BAD_INPUT
