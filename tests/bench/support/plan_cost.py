"""What one plan costs a process, part by part: ``python -m tests.bench.support.plan_cost``, JSON in and out.

A process of its own, because starting one and loading libraries is a part of it. Seconds are of its CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from api import planning
from api.plan_request import PlanRequest
from placement import planner
from placement.problem import Objective
from placement.solver.batches import MapTasks, SearchTask
from placement.solver.plans import Plans
from profiler.plan_file import write_plan
from profiler.readers.options import ReadOptions


@dataclass(frozen=True)
class PlanCost:
    """CPU seconds of the parts of a plan.

    Attributes
    ----------
    start_s
        From nothing to a process that has loaded all libraries.
    read_s
        The recording.
    search_s
        The search layer by layer, which workers can share.
    solver_s
        The rest of the solver: bounds, choice among layouts.
    judge_s
        The ruler, the baselines and the move schedule.
    write_s
        The plan's file.
    """

    start_s: float
    read_s: float
    search_s: float
    solver_s: float
    judge_s: float
    write_s: float

    @property
    def total_s(self) -> float:
        return self.start_s + self.read_s + self.search_s + self.solver_s + self.judge_s + self.write_s


def cost_of_plan(recording: Path, folder: Path, **asked: Any) -> PlanCost:
    """Make a plan from a recording in a process of its own and return what it cost."""
    request = {"recording": str(recording), "out": str(folder / "cost.json"), "asked": asked}
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.support.plan_cost"], input=json.dumps(request), check=True, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    return PlanCost(**json.loads(done.stdout))


class _Clock:
    """Adds up the CPU time of calls."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began_s = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.spent_s += time.process_time() - began_s

        return timed

    def around_map(self, inner: MapTasks) -> MapTasks:
        def timed(run: Callable[[SearchTask], Plans], tasks: Iterable[SearchTask]) -> Iterator[Plans]:
            return iter(list(inner(self.around(run), tasks)))

        return timed


def main() -> None:
    start_s = time.process_time()
    request = json.loads(sys.stdin.read())
    given = request["asked"]
    asked = {**given, "objective": Objective(given["objective"]), "current": Path(given["current"])}
    search, solver, judge = _Clock(), _Clock(), _Clock()
    began_s = time.process_time()
    with (
        patch.object(planning, "solve_problem", solver.around(planner.solve_problem)),
        patch.object(planning, "make_plan", judge.around(planner.make_plan)),
    ):
        plan = planning.plan_from_files(
            [Path(request["recording"])], ReadOptions(), PlanRequest(**asked), around_map=search.around_map
        )
    made_s = time.process_time()
    write_plan(plan, Path(request["out"]))
    cost = PlanCost(
        start_s=start_s,
        read_s=made_s - began_s - solver.spent_s - judge.spent_s,
        search_s=search.spent_s,
        solver_s=solver.spent_s - search.spent_s,
        judge_s=judge.spent_s,
        write_s=time.process_time() - made_s,
    )
    print(json.dumps(cost.__dict__))


if __name__ == "__main__":
    main()
