"""Layers that were searched before a worker died are not searched again.

The search of a plan is a map over independent tasks, one per batch of layers, and a task's result depends on the task
alone (:mod:`placement.solver.batches`). So each result is kept in a file named by a hash of its task; a solve that
begins again takes from there what is done, and comes to the same plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from placement.solver.batches import MapTasks, SearchTask
from placement.solver.plans import Plans
from profiler.files import atomic_output


class CheckpointedMap:
    """Like the built-in ``map`` over search tasks, remembering results in a folder.

    Parameters
    ----------
    folder : Path
        Of one job; made when the first result is kept.
    inner : callable
        Runs the tasks that are new: the built-in ``map``, a crew.
    on_done : callable
        Called with the numbers of tasks taken from the folder and run, after every call.
    """

    def __init__(self, folder: Path, inner: MapTasks, *, on_done: Callable[[int, int], None]) -> None:
        self._folder = folder
        self._inner = inner
        self._on_done = on_done
        self._taken = 0
        self._run = 0

    def __call__(self, run: Callable[[SearchTask], Plans], tasks: Iterable[SearchTask]) -> list[Plans]:
        """Apply ``run`` to every task whose result is not kept yet; results in the order of the tasks."""
        return list(self._results(run, tasks))

    def _results(self, run: Callable[[SearchTask], Plans], tasks: Iterable[SearchTask]) -> Iterable[Plans]:
        # One after the other, so that each result is kept as soon as it is there.
        for task in tasks:
            file = self._folder / f"{_name_of(task)}.npz"
            kept = _read(file)
            if kept is not None:
                self._taken += 1
                self._on_done(self._taken, self._run)
                yield kept
                continue
            (plans,) = self._inner(run, [task])
            self._run += 1
            if not task.deadline.passed:  # cut short, it would depend on the clock
                self._keep(file, plans)
            self._on_done(self._taken, self._run)
            yield plans

    def _keep(self, file: Path, plans: Plans) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_output(file) as temporary, temporary.open("wb") as opened:
            np.savez(opened, slots_LGP=plans.slots_LGP, local_L=plans.local_L, peak_WL=plans.peak_WL)


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
    """Feed everything a task's result depends on: all fields but the deadline."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__name__.encode())
        for each in dataclasses.fields(value):
            if each.name != "deadline":
                digest.update(each.name.encode())
                _feed(digest, getattr(value, each.name))
    elif isinstance(value, (tuple, list)):
        digest.update(f"[{len(value)}]".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{type(value).__name__}:{value!r};".encode())
