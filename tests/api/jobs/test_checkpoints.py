"""Finished layers, remembered by what they were made from."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from api.jobs.checkpoints import CheckpointedMap
from api.workers import FanOut
from placement.demand import Demand
from placement.problem import Problem
from placement.solver import batches, solve
from placement.solver.batches import SearchTask, run_search
from placement.solver.deadline import Deadline
from placement.solver.plans import Plans
from placement.topology import Topology
from tests.api.workers.test_fan_out import ThreadCrew, tasks_of_layers


class Counted:
    """The built-in map, counting its tasks and keeping them."""

    def __init__(self) -> None:
        self.tasks: list[SearchTask] = []

    def __call__(self, run: Callable[[SearchTask], Plans], tasks: Iterable[SearchTask]) -> list[Plans]:
        found = list(tasks)
        self.tasks += found
        return [run(task) for task in found]


def silent(taken: int, run: int) -> None:
    """Report to nobody."""


@pytest.fixture
def problem() -> Problem:
    counts_WLE = np.random.default_rng(1).gamma(0.6, 300.0, (2, 6, 32)).astype(int) + 1
    return Problem(demand=Demand.uniform(counts_WLE), topology=Topology(4), slots_per_gpu=12)


@pytest.fixture
def tasks(problem: Problem) -> list[SearchTask]:
    counted = Counted()
    solve(problem, map_tasks=counted, exact_seconds=0.0)
    return counted.tasks


def test_a_solve_that_begins_again_searches_nothing_again_and_finds_the_same(problem: Problem, tmp_path: Path) -> None:
    first, second = Counted(), Counted()
    plain = solve(problem, exact_seconds=0.0)
    one = solve(problem, map_tasks=CheckpointedMap(tmp_path, first, on_done=silent), exact_seconds=0.0)
    told: list[tuple[int, int]] = []
    again_map = CheckpointedMap(tmp_path, second, on_done=lambda taken, run: told.append((taken, run)))
    two = solve(problem, map_tasks=again_map, exact_seconds=0.0)
    assert plain.layout.hash == one.layout.hash == two.layout.hash
    assert first.tasks
    assert second.tasks == []
    assert told[-1][0] >= len(first.tasks)
    assert told[-1][1] == 0


def test_a_task_that_is_given_twice_was_not_searched_before(tasks: list[SearchTask], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    kept = CheckpointedMap(tmp_path, Counted(), on_done=lambda taken, run: told.append((taken, run)))
    for _ in range(2):
        kept(run_search, tasks[:1])
    assert told == [(0, 1), (0, 2)]


def test_new_tasks_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many run at a time as the crew has workers; a worker alone would wait for the other in vain."""
    monkeypatch.setattr(batches, "BATCH_CELLS", 1)
    meeting = threading.Barrier(2)

    def meet(_: SearchTask) -> None:
        meeting.wait(timeout=30.0)

    fan_out = FanOut(ThreadCrew(2, before=meet))
    instances = tasks_of_layers()
    assert len(instances) % 2 == 0
    shared = CheckpointedMap(tmp_path, fan_out, on_done=silent)(run_search, instances)
    assert fan_out.notices == ()
    assert [plans.slots_LGP.tobytes() for plans in shared] == [
        run_search(task).slots_LGP.tobytes() for task in instances
    ]
    again = CheckpointedMap(tmp_path, Counted(), on_done=silent)(run_search, instances)
    assert [plans.slots_LGP.tobytes() for plans in again] == [plans.slots_LGP.tobytes() for plans in shared]


def test_kept_and_new_results_stay_in_order(tasks: list[SearchTask], tmp_path: Path) -> None:
    some = [replace(tasks[0], local_weight=weight) for weight in (0.0, 0.1, 0.2, 0.3, 0.4)]
    CheckpointedMap(tmp_path, Counted(), on_done=silent)(run_search, [some[1], some[2], some[4]])
    counted = Counted()
    told: list[tuple[int, int]] = []
    kept = CheckpointedMap(tmp_path, counted, on_done=lambda taken, run: told.append((taken, run)))
    found = kept(run_search, some)
    assert [task.local_weight for task in counted.tasks] == [0.0, 0.3]
    assert told[-1] == (3, 2)
    assert [plans.slots_LGP.tobytes() for plans in found] == [run_search(task).slots_LGP.tobytes() for task in some]


def test_a_result_is_kept_before_the_next_is_there(tasks: list[SearchTask], tmp_path: Path) -> None:
    """With a crew too: what a worker died over is one task, not the whole search."""
    kept_by_then = []

    def dies_third(run: Callable[[SearchTask], Plans], several: Iterable[SearchTask]) -> Iterator[Plans]:
        for number, task in enumerate(several):
            if number == 2:
                kept_by_then.append(len(list(tmp_path.glob("*.npz"))))
                raise KeyboardInterrupt
            yield run(task)

    some = [replace(tasks[0], local_weight=weight) for weight in (0.0, 0.1, 0.2, 0.3)]
    with pytest.raises(KeyboardInterrupt):
        CheckpointedMap(tmp_path, dies_third, on_done=silent)(run_search, some)
    assert kept_by_then == [2]


def test_only_the_deadline_makes_no_difference(tasks: list[SearchTask], tmp_path: Path) -> None:
    task = tasks[0]
    counted = Counted()
    kept = CheckpointedMap(tmp_path, counted, on_done=silent)
    kept(run_search, [task])
    kept(run_search, [replace(task, deadline=Deadline.after(100.0))])
    assert len(counted.tasks) == 1
    others = [
        replace(task, local_weight=task.local_weight + 0.5),
        replace(task, order_G=task.order_G[::-1]),
        replace(task, price_WL=task.price_WL * 2),
        replace(task, instance=replace(task.instance, slots_per_gpu=task.instance.slots_per_gpu + 1)),
    ]
    for number, other in enumerate(others, start=2):
        kept(lambda _: run_search(task), [other])
        assert len(counted.tasks) == number


def test_what_a_deadline_cut_short_is_not_kept(tasks: list[SearchTask], tmp_path: Path) -> None:
    counted = Counted()
    kept = CheckpointedMap(tmp_path, counted, on_done=silent)
    late = replace(tasks[0], deadline=Deadline(time.monotonic() - 1.0))
    kept(run_search, [late])
    kept(run_search, [late])
    assert len(counted.tasks) == 2
    assert list(tmp_path.glob("*.npz")) == []


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half of a file", b"no archive"])
def test_a_damaged_file_is_as_good_as_none(tasks: list[SearchTask], tmp_path: Path, damage: bytes) -> None:
    counted = Counted()
    kept = CheckpointedMap(tmp_path, counted, on_done=silent)
    (right,) = kept(run_search, tasks[:1])
    (file,) = tmp_path.glob("*.npz")
    file.write_bytes(damage)
    (again,) = kept(run_search, tasks[:1])
    assert len(counted.tasks) == 2
    assert np.array_equal(right.slots_LGP, again.slots_LGP)
