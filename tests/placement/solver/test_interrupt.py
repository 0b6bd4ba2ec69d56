"""Ctrl-C stays Python's: it unwinds, so that half-written files go, also after CP-SAT has run."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from placement.demand import Demand
from placement.problem import Problem
from placement.solver import solve
from placement.topology import Topology


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is not signal.default_int_handler, reason="this process was started without Ctrl-C"
)
def test_a_solve_leaves_ctrl_c_to_python() -> None:
    tokens_WLE = np.random.default_rng(1).integers(1, 1000, size=(1, 2, 8))
    solution = solve(Problem(Demand.uniform(tokens_WLE), Topology(4), 4, max_imbalance=1.01))
    assert solution.bound.imbalance is not None
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
