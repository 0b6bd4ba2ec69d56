"""A problem of several batches, and runs of its search that go wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from api.workers import FanOut
from placement.demand import Demand
from placement.problem import Objective, Problem
from placement.solution import Solution
from placement.solver import solve
from placement.solver.batches import MapTasks, SearchTask, run_search
from placement.solver.plans import Plans
from placement.topology import Topology

LAYERS = 6


def several_batches(*, nodes: int = 1) -> Problem:
    """Return a problem whose layers are far from even; the fixture ``one_layer_each`` makes each a batch."""
    tokens_WLE = np.random.default_rng(7).lognormal(sigma=1.0, size=(2, LAYERS, 24)) * 1e3
    demand = Demand(tokens_WLE.astype(np.int64)[:, :, None, :], "uniform", ("prefill", "decode"))
    return Problem(demand, Topology(8, nodes), 4, objective=Objective.BALANCE)


def searched(problem: Problem, *, map_tasks: MapTasks | None = None, time_limit_s: float | None = None) -> Solution:
    """Plan; these layers are too large for CP-SAT, so all that is done is search."""
    return solve(problem, map_tasks=map_tasks, time_limit_s=time_limit_s)


def mapped_by(fan_out: FanOut, run: Sabotage) -> MapTasks:
    """Return a map that runs sabotaged searches."""

    def map_tasks(_: object, tasks: Iterable[SearchTask]) -> Iterable[Plans]:
        return fan_out(run, tasks)

    return map_tasks


@dataclass(frozen=True)
class Sabotage:
    """A search that goes wrong ``times`` times, away from the process ``home``; counted by files in ``folder``."""

    folder: Path
    times: int
    home: int

    def __call__(self, task: SearchTask) -> Plans:
        if os.getpid() != self.home and self._is_my_turn():
            self.go_wrong()
        return run_search(task)

    def go_wrong(self) -> None:
        raise NotImplementedError

    def _is_my_turn(self) -> bool:
        for turn in range(self.times):
            try:
                (self.folder / f"turn {turn}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


class Dies(Sabotage):
    """The worker is killed, as by a machine short of memory."""

    def go_wrong(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Raises(Sabotage):
    """The task fails."""

    def go_wrong(self) -> None:
        raise OSError("the disk of this machine is gone")


class Hangs(Sabotage):
    """The worker stops answering."""

    def go_wrong(self) -> None:
        time.sleep(600)
