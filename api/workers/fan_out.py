"""A map over tasks on a crew: results in order, none missing, whatever happens to the crew."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, replace
from typing import Protocol

from placement.notice import Notice
from placement.solver.batches import SearchTask
from placement.solver.plans import Plans

RunTask = Callable[[SearchTask], Plans]

RETRIES = 2
"""Times that a lost task is sent out again before this process runs it."""

GRACE_S = 2.0
"""Past the deadline, what a crew may need to hand in what it has: a step of the search, and the way back."""


class Crew(Protocol):
    """Workers that take one task each."""

    size: int
    """Tasks that it works on at a time."""

    def submit(self, run: RunTask, task: SearchTask) -> Future[Plans]:
        """Send a task out. After a loss this must work again, with new workers where the old ones are gone."""

    def close(self) -> None:
        """End the workers at once, whatever they do."""


@dataclass(frozen=True, eq=False)
class _Job:
    index: int
    task: SearchTask
    losses: int = 0


class FanOut:
    """Like the built-in ``map``, on a crew.

    Tasks are taken when a worker is free, and at most ``crew.size`` are on their way, so a task's deadline, which
    travels as seconds left, does not wait in a queue. A task whose worker dies or that raises is sent out again, at
    most ``RETRIES`` times, and then run here. So is what no worker has handed in ``GRACE_S`` after the deadline; there
    the search ends where it starts, with the layout that was sent.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._lost = 0
        self._lost_in_a_row = 0
        self._brought_home = 0
        self._last_loss = ""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """``WORKER_LOST`` where any task was lost; the plan is the same."""
        if not self._lost:
            return ()
        detail = (
            f"{self._lost} {'task was' if self._lost == 1 else 'tasks were'} lost by workers (the last: "
            f"{self._last_loss}) and run again, {self._brought_home} of them in this process; the plan is the same."
        )
        return (Notice("WORKER_LOST", detail),)

    def __call__(self, run: RunTask, tasks: Iterable[SearchTask]) -> Iterator[Plans]:
        """Apply ``run`` to every task; results in the order of the tasks, each as soon as those before it are there."""
        taken = (_Job(index, task) for index, task in enumerate(tasks))
        again: deque[_Job] = deque()
        running: dict[Future[Plans], _Job] = {}
        done: dict[int, Plans] = {}
        following = 0
        while True:
            job = _next(again, taken) if len(running) < self._crew.size else None
            if job is None and not running:
                return
            if job is None:
                self._wait(running, again, done)
            elif self._stays_here(job):
                done[job.index] = run(job.task)
            else:
                self._send(run, job, running, again)
            while following in done:
                yield done.pop(following)
                following += 1

    def _wait(self, running: dict[Future[Plans], _Job], again: deque[_Job], done: dict[int, Plans]) -> None:
        """Wait for an answer, or until nobody is waited for any more."""
        until_s = max(job.task.deadline.at_s for job in running.values()) + GRACE_S
        patience_s = None if until_s == float("inf") else max(0.0, until_s - time.monotonic())
        finished, _ = wait(running, timeout=patience_s, return_when=FIRST_COMPLETED)
        for future in finished:
            job = running.pop(future)
            error = _error_of(future)
            if error is None:
                self._lost_in_a_row = 0
                done[job.index] = future.result()
            else:
                again.appendleft(self._lose(job, error))
        if running and time.monotonic() >= until_s:
            late = TimeoutError(f"no answer {GRACE_S:g} s after the time limit")
            again.extend(self._lose(job, late) for job in running.values())
            running.clear()

    def _stays_here(self, job: _Job) -> bool:
        # A crew that has handed in nothing for so long is given up, which spares every task its own attempts.
        hopeless = self._lost_in_a_row > RETRIES * self._crew.size
        stays = job.task.deadline.passed or job.losses > RETRIES or hopeless
        self._brought_home += stays and job.losses > 0
        return stays

    def _send(self, run: RunTask, job: _Job, running: dict[Future[Plans], _Job], again: deque[_Job]) -> None:
        try:
            running[self._crew.submit(run, job.task)] = job
        except (BrokenExecutor, OSError) as error:
            again.appendleft(self._lose(job, error))

    def _lose(self, job: _Job, error: BaseException) -> _Job:
        self._lost += 1
        self._lost_in_a_row += 1
        said = " ".join(str(error).split())
        self._last_loss = f"{type(error).__name__}: {said[:160]}".rstrip(" .:")
        return replace(job, losses=job.losses + 1)


def _next(again: deque[_Job], taken: Iterator[_Job]) -> _Job | None:
    return again.popleft() if again else next(taken, None)


def _error_of(future: Future[Plans]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError as error:
        return error
