"""The seam between the search and whatever runs it: independent tasks, one per batch of layers.

How layers are cut into batches depends on the problem alone, and a task on nothing but itself. So it does not matter
who maps them: the built-in ``map``, a thread pool, processes or a cluster give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from placement.solver.deadline import Deadline
from placement.solver.goal import Goal
from placement.solver.instance import Floats, Instance, Ints
from placement.solver.local_search import Effort, descend
from placement.solver.placing import Placing, Slots
from placement.solver.plans import Plans

BATCH_CELLS = 40_000
"""Swaps evaluated at once per window: more leave the processor's caches, and are fewer tasks to share out."""

BATCH_SHARES = 500_000
"""The same where dispatch is not even, of the numbers in the table of what an expert puts on every GPU."""


@dataclass(frozen=True, eq=False)
class SearchTask:
    """One batch of layers to improve; everything a worker needs and no more, so it can be sent to another process."""

    instance: Instance
    slots_LGP: Slots
    price_WL: Floats
    local_weight: float
    effort: Effort
    order_G: Ints
    deadline: Deadline
    """Of the whole search."""

    time_share: float = 1.0
    """Of the time that is left when this task begins: a map may take tasks long before it runs them."""


MapTasks = Callable[[Callable[[Any], Plans], Iterable[Any]], Iterable[Plans]]
"""Anything like the built-in ``map``: applies a function to tasks, results in order.

Tasks are :class:`SearchTask` or others with a ``deadline`` and a ``time_share`` that can be sent to another process.
"""


def run_search(task: SearchTask) -> Plans:
    """Improve one batch of layers; the function that is mapped over tasks."""
    placing = Placing(task.instance, task.slots_LGP)
    goal = Goal(task.price_WL, task.local_weight, task.effort.doublings[0])
    deadline = task.deadline.part(task.time_share)
    descend(placing, goal, task.effort, order_G=task.order_G, deadline=deadline)
    placing.recount(np.arange(task.instance.layers))
    return Plans(
        placing.slots_LGP,
        task.instance.local_of(placing.hosts_LEG),
        task.instance.weight_WL * placing.peaks(),
    )


@dataclass(frozen=True, eq=False)
class Searcher:
    """Runs the local search on all layers of an instance."""

    instance: Instance
    map_tasks: MapTasks
    deadline: Deadline
    seed: int

    def improve(self, slots_LGP: Slots, *, price_W: Floats, local_weight: float, effort: Effort) -> Plans:
        """Improve every layer for prices per window and a weight on local share."""
        order_G = np.random.default_rng(self.seed).permutation(self.instance.gpus)
        price_WL = price_W[:, None] * self.instance.weight_WL
        batches = list(self._batches())
        tasks = (
            SearchTask(
                self.instance.take(batch),
                slots_LGP[batch],
                price_WL[:, batch],
                local_weight,
                effort,
                order_G,
                self.deadline,
                # What is left of the time is for all the batches that are left, or the last layers would get none.
                1 / (len(batches) - index),
            )
            for index, batch in enumerate(batches)
        )
        done = list(self.map_tasks(run_search, tasks))
        return Plans(
            np.concatenate([plans.slots_LGP for plans in done]),
            np.concatenate([plans.local_L for plans in done]),
            np.concatenate([plans.peak_WL for plans in done], axis=1),
        )

    def _batches(self) -> Iterator[slice]:
        instance = self.instance
        cells = max(1, instance.gpus // 2) * instance.slots_per_gpu**2
        size = max(1, BATCH_CELLS // cells)
        if not instance.even:
            size = max(1, min(size, BATCH_SHARES // (instance.windows * instance.experts * instance.gpus)))
        for start in range(0, instance.layers, size):
            yield slice(start, min(start + size, instance.layers))


@contextmanager
def task_map(threads: int, map_tasks: MapTasks | None) -> Iterator[MapTasks]:
    """Give the map that was handed in, else one for a number of threads: the built-in one for one thread."""
    if map_tasks is not None or threads == 1:
        yield map_tasks or map
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map
