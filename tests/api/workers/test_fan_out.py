"""What a fan-out makes of a crew's good and bad days; crews of threads, which can be made to fail at will."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from api.workers import fan_out as module
from api.workers.fan_out import RETRIES, FanOut, RunTask
from placement.solver.batches import Searcher, SearchTask, run_search
from placement.solver.deadline import Deadline
from placement.solver.instance import instance_of
from placement.solver.local_search import Effort
from placement.solver.plans import Plans
from placement.solver.starts import pack, replicas_by_load
from tests.api.workers.layers import LAYERS, several_batches


class ThreadCrew:
    """Threads of this process; ``before`` may raise instead of the task, or instead of taking it."""

    def __init__(self, size: int = 2, *, before: Callable[[SearchTask], None] = lambda task: None) -> None:
        self.size = size
        self.sent: list[SearchTask] = []
        self._before = before
        self._pool = ThreadPoolExecutor(size)

    def submit(self, run: RunTask, task: SearchTask) -> Future[Plans]:
        self.sent.append(task)

        def run_after() -> Plans:
            self._before(task)
            return run(task)

        return self._pool.submit(run_after)

    def close(self) -> None:
        self._pool.shutdown()


class RefusingCrew(ThreadCrew):
    """Takes no task at all."""

    def submit(self, run: RunTask, task: SearchTask) -> Future[Plans]:
        self.sent.append(task)
        raise BrokenExecutor("no worker starts")


def tasks_of_layers(deadline: Deadline = Deadline()) -> list[SearchTask]:  # noqa: B008  (frozen)
    instance = instance_of(several_batches())
    slots_LGP = pack(instance, replicas_by_load(instance.total_WLE, gpus=instance.gpus, slots=instance.slots))
    taken: list[SearchTask] = []

    def keep(run: Callable[[SearchTask], Plans], tasks: object) -> list[Plans]:
        taken.extend(tasks)  # type: ignore[call-overload]
        return [run(task) for task in taken]

    Searcher(instance, keep, deadline, 0).improve(
        slots_LGP, price_W=np.full(2, 0.5), local_weight=0.0, effort=Effort(tours=1)
    )
    return taken


def same(results: Iterable[Plans], wanted: list[Plans]) -> bool:
    found = list(results)
    return len(found) == len(wanted) and all(
        a.slots_LGP.tobytes() == b.slots_LGP.tobytes() and a.peak_WL.tobytes() == b.peak_WL.tobytes()
        for a, b in zip(found, wanted, strict=True)
    )


def test_results_come_in_the_order_of_tasks_and_nothing_is_noticed() -> None:
    tasks, crew = tasks_of_layers(), ThreadCrew()
    fan_out = FanOut(crew)
    assert same(fan_out(run_search, tasks), [run_search(task) for task in tasks])
    assert len(crew.sent) == LAYERS
    assert fan_out.notices == ()


def test_tasks_are_taken_when_a_worker_is_free_and_results_given_as_they_come() -> None:
    """A list of all tasks at the beginning, or of all results at the end, would be too late for whoever keeps them."""
    tasks, crew = tasks_of_layers(), ThreadCrew(1)
    taken: list[SearchTask] = []

    def one_by_one() -> Iterator[SearchTask]:
        for task in tasks:
            taken.append(task)
            yield task

    results = FanOut(crew)(run_search, one_by_one())
    first = next(iter(results))
    assert same([first], [run_search(tasks[0])])
    assert taken == tasks[:1]
    crew.close()


def test_no_tasks_are_no_results() -> None:
    assert list(FanOut(ThreadCrew())(run_search, [])) == []


def test_a_task_that_fails_once_is_sent_again() -> None:
    tasks, failed = tasks_of_layers(), []

    def fail_once(task: SearchTask) -> None:
        if task is tasks[3] and not failed:
            failed.append(task)
            raise ValueError("a bit flipped")

    crew = ThreadCrew(before=fail_once)
    fan_out = FanOut(crew)
    assert same(fan_out(run_search, tasks), [run_search(task) for task in tasks])
    assert len(crew.sent) == LAYERS + 1
    (notice,) = fan_out.notices
    assert notice.code == "WORKER_LOST"
    assert "1 task was lost" in notice.detail
    assert "ValueError: a bit flipped" in notice.detail
    assert "0 of them in this process" in notice.detail


def test_a_task_that_always_fails_elsewhere_is_run_here() -> None:
    tasks = tasks_of_layers()

    def fail(task: SearchTask) -> None:
        if task is tasks[0]:
            raise MemoryError

    crew = ThreadCrew(before=fail)
    fan_out = FanOut(crew)
    assert same(fan_out(run_search, tasks), [run_search(task) for task in tasks])
    assert sum(task is tasks[0] for task in crew.sent) == 1 + RETRIES
    assert "1 of them in this process" in fan_out.notices[0].detail


def test_a_crew_that_takes_nothing_is_given_up() -> None:
    tasks, crew = tasks_of_layers(), RefusingCrew()
    fan_out = FanOut(crew)
    assert same(fan_out(run_search, tasks), [run_search(task) for task in tasks])
    assert same(fan_out(run_search, tasks), [run_search(task) for task in tasks])
    assert len(crew.sent) == RETRIES * crew.size + 1


def test_an_error_of_this_process_is_an_error() -> None:
    def always(_: SearchTask) -> Plans:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(FanOut(ThreadCrew())(always, tasks_of_layers()))


def test_after_the_deadline_nothing_is_sent_and_layouts_stay() -> None:
    tasks, crew = tasks_of_layers(Deadline.after(0.0)), ThreadCrew()
    plans = list(FanOut(crew)(run_search, tasks))
    assert crew.sent == []
    assert all((each.slots_LGP == task.slots_LGP).all() for each, task in zip(plans, tasks, strict=True))


def test_who_does_not_answer_past_the_deadline_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    tasks = [replace(task, deadline=Deadline.after(0.3)) for task in tasks_of_layers()]
    crew = _SilentCrew()
    fan_out = FanOut(crew)
    plans = list(fan_out(run_search, tasks))
    assert len(crew.sent) == crew.size
    assert all((each.slots_LGP == task.slots_LGP).all() for each, task in zip(plans, tasks, strict=True))
    assert "TimeoutError" in fan_out.notices[0].detail


class _SilentCrew(ThreadCrew):
    """Takes tasks and never says anything again."""

    def submit(self, run: RunTask, task: SearchTask) -> Future[Plans]:
        self.sent.append(task)
        return Future()


def test_a_cancelled_task_is_a_lost_one() -> None:
    tasks = tasks_of_layers()
    fan_out = FanOut(_CancellingCrew())
    assert same(fan_out(run_search, tasks), [run_search(task) for task in tasks])
    assert "CancelledError" in fan_out.notices[0].detail


class _CancellingCrew(ThreadCrew):
    def submit(self, run: RunTask, task: SearchTask) -> Future[Plans]:
        future: Future[Plans] = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future
