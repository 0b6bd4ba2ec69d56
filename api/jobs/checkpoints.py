"""Layers that were searched before a worker died are not searched again.

The search of a plan is a map over independent tasks, one per batch of layers, and a task's result depends on the task
alone (:mod:`placement.solver.batches`). So each result is kept in a file named by a hash of its task; a solve that
begins again takes from there what is done, and comes to the same plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from placement.solver.batches import MapTasks, SearchTask
from placement.solver.deadline import Deadline
from placement.solver.plans import Plans
from profiler.files import atomic_output

TIMES = ("deadline", "time_share")
"""Fields of a task that its result does not depend on, unless time runs out."""


class CheckpointedMap:
    """Like the built-in ``map`` over search tasks, remembering results in a folder.

    Parameters
    ----------
    folder : Path
        Of one job; made when the first result is kept.
    inner : callable
        Runs the tasks that are new: the built-in ``map``, a crew.
    on_done : callable
        Called with the numbers of tasks taken from the folder and run, after every task.
    """

    def __init__(self, folder: Path, inner: MapTasks, *, on_done: Callable[[int, int], None]) -> None:
        self._folder = folder
        self._inner = inner
        self._on_done = on_done
        self._taken = 0
        self._run = 0
        self._own: set[Path] = set()  # a search may give the same task twice

    def __call__(self, run: Callable[[SearchTask], Plans], tasks: Iterable[SearchTask]) -> list[Plans]:
        """Apply ``run`` to every task whose result is not kept yet; results in the order of the tasks."""
        return list(self._results(run, tasks))

    def _results(self, run: Callable[[SearchTask], Plans], tasks: Iterable[SearchTask]) -> Iterator[Plans]:
        # The new ones go to the map inside together, which may share them out; it hands each over when it is done.
        waiting: deque[_Waiting] = deque()
        for plans in self._inner(run, self._new(tasks, waiting)):
            yield from self._kept_first(waiting)
            new = waiting.popleft()
            self._run += 1
            if not new.surely_whole_until.passed:  # cut short, it would depend on the clock
                self._keep(new.file, plans)
                self._own.add(new.file)
            self._on_done(self._taken, self._run)
            yield plans
        yield from self._kept_first(waiting)

    def _new(self, tasks: Iterable[SearchTask], waiting: deque[_Waiting]) -> Iterator[SearchTask]:
        """Give the tasks that are new, and note in ``waiting`` what every task's result is or will be."""
        for task in tasks:
            file = self._folder / f"{_name_of(task)}.npz"
            kept = _read(file)
            # Whoever runs it begins later than now, so its own time ends later than this.
            waiting.append(_Waiting(file, kept, task.deadline.part(task.time_share)))
            if kept is None:
                yield task

    def _kept_first(self, waiting: deque[_Waiting]) -> Iterator[Plans]:
        while waiting and (kept := waiting[0].kept) is not None:
            own = waiting.popleft().file in self._own
            self._taken, self._run = self._taken + (not own), self._run + own
            self._on_done(self._taken, self._run)
            yield kept

    def _keep(self, file: Path, plans: Plans) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_output(file) as temporary, temporary.open("wb") as opened:
            np.savez(opened, slots_LGP=plans.slots_LGP, local_L=plans.local_L, peak_WL=plans.peak_WL)


@dataclass(frozen=True)
class _Waiting:
    """A task whose result has not been handed out yet."""

    file: Path
    kept: Plans | None
    surely_whole_until: Deadline


def _read(file: Path) -> Plans | None:
    try:
        with np.load(file, allow_pickle=False) as kept:
            return Plans(kept["slots_LGP"], kept["local_L"], kept["peak_WL"])
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, BadZipFile):
        return None  # a file that cannot be read is as good as none


def _name_of(task: SearchTask) -> str:
    digest = hashlib.sha256()
    _feed(digest, task)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, value: object) -> None:
    """Feed everything a task's result depends on: all fields but those of time."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__name__.encode())
        for each in dataclasses.fields(value):
            if each.name not in TIMES:
                digest.update(each.name.encode())
                _feed(digest, getattr(value, each.name))
    elif isinstance(value, (tuple, list)):
        digest.update(f"[{len(value)}]".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{type(value).__name__}:{value!r};".encode())
