"""Search tasks: what travels with them."""

from __future__ import annotations

import pickle
import time
from types import SimpleNamespace

import numpy as np
import pytest

from placement.demand import Demand
from placement.problem import Problem
from placement.solver import batches, solve
from placement.solver import deadline as deadline_module
from placement.solver.batches import MapTasks, Searcher, SearchTask
from placement.solver.deadline import Deadline
from placement.solver.instance import instance_of
from placement.solver.local_search import Effort
from placement.solver.starts import pack, replicas_by_load
from placement.topology import Topology


def test_a_deadline_travels_as_seconds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(Deadline.after(60.0))
    # A machine that was started at another time has another clock.
    here = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: here() + 1e6)
    arrived: Deadline = pickle.loads(sent)
    assert not arrived.passed
    assert 0 < arrived.left_s <= 60.0


def test_a_passed_deadline_and_none_arrive_as_such() -> None:
    assert pickle.loads(pickle.dumps(Deadline.after(0.0))).passed
    assert pickle.loads(pickle.dumps(Deadline())) == Deadline()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_task_carries_its_own_layers_only(nodes: int) -> None:
    layers, experts, gpus = 64, 64, 16
    tokens_LE = np.random.default_rng(0).integers(1, 1000, (layers, experts))
    sizes = []

    def measuring(run, tasks):  # type: ignore[no-untyped-def]
        for task in tasks:
            sizes.append((len(pickle.dumps(task)), task.instance.layers))
            yield run(task)

    _solved_by(measuring, Problem(Demand.uniform(tokens_LE), Topology(gpus, nodes), 20))
    assert len({layers for _, layers in sizes}) > 1 or sizes[0][1] < layers
    for size, taken in sizes:
        # Demand once or twice (with sources), values, slots: a few numbers per expert and slot.
        assert size <= taken * 8 * (4 * experts + 20 * gpus) + 4096


def test_threads_and_another_map_give_the_same_layout() -> None:
    tokens_LE = np.random.default_rng(0).integers(1, 1000, (40, 64))
    problem = Problem(Demand.uniform(tokens_LE), Topology(16), 20)
    alone = solve(problem).layout.hash
    assert solve(problem, threads=3).layout.hash == alone
    assert _solved_by(lambda run, tasks: [run(_by_post(task)) for task in tasks], problem) == alone


def _by_post(task: SearchTask) -> SearchTask:
    return pickle.loads(pickle.dumps(task))


def _solved_by(map_tasks: MapTasks, problem: Problem) -> str:
    return solve(problem, map_tasks=map_tasks).layout.hash


@pytest.mark.parametrize("take_all_first", [False, True])
def test_a_batch_gets_its_share_of_the_time_that_is_left_when_it_begins(
    monkeypatch: pytest.MonkeyPatch, take_all_first: bool
) -> None:
    """Whoever takes all tasks before the first is run must not cut the later ones short."""
    clock_s = [1000.0]
    monkeypatch.setattr(deadline_module, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    given: list[tuple[float, float]] = []

    def descend(*_: object, deadline: Deadline, **__: object) -> None:
        given.append((clock_s[0], deadline.at_s))
        clock_s[0] += 2.0

    monkeypatch.setattr(batches, "descend", descend)
    monkeypatch.setattr(batches, "BATCH_CELLS", 1)
    problem = Problem(Demand.uniform(np.random.default_rng(0).integers(1, 1000, (5, 16))), Topology(4), 6)
    instance = instance_of(problem)
    slots_LGP = pack(instance, replicas_by_load(instance.total_WLE, gpus=instance.gpus, slots=instance.slots))
    map_tasks: MapTasks = (lambda run, tasks: list(map(run, list(tasks)))) if take_all_first else map
    searcher = Searcher(instance, map_tasks, Deadline(1100.0), 0)
    searcher.improve(slots_LGP, price_W=np.ones(1), local_weight=0.0, effort=Effort())
    assert len(given) == 5
    for number, (began_s, at_s) in enumerate(given):
        assert at_s == pytest.approx(began_s + (1100.0 - began_s) / (5 - number))


def test_a_part_of_what_is_left_ends_earlier() -> None:
    assert Deadline().part(0.5) == Deadline()
    whole = Deadline.after(100.0)
    half = whole.part(0.5)
    assert 0 < half.left_s <= whole.left_s / 2 + 0.1
    assert Deadline.after(-1.0).part(0.5).passed
