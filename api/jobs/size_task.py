"""Planning for several numbers of slots, in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from api.jobs.linked_files import linked
from api.jobs.plan_task import json_file
from api.jobs.task_process import Json
from api.planning import DEFAULT_LOCAL_TARGET, problem_from_files
from api.service.plan_options import read_options_of, request_of
from placement.sizing import plan_by_slots, slots_worth_planning

TIME_LIMIT_S = 300.0
"""For all numbers of slots together: a curve must not keep a worker for hours."""


def run(request: Json, progress: Callable[[float, str], None]) -> Json:
    """Plan for several numbers of slots and return them with their plans' figures and bounds.

    ``inputs``, ``options``, ``costs``: as :func:`api.jobs.plan_task.run` takes them. ``rows``: how many numbers.
    """
    with tempfile.TemporaryDirectory(prefix="moeplan-sizes-") as folder:
        progress(0.0, "reading")
        asked = request_of(
            request["options"],
            test=(),
            topology_file=json_file(request["costs"], Path(folder) / "costs.json"),
            current=None,
        )
        inputs = linked(request["inputs"], Path(folder) / "inputs")
        problem = problem_from_files(inputs, read_options_of(request["options"]), asked)
    target = DEFAULT_LOCAL_TARGET if asked.local_target is None else asked.local_target
    numbers = slots_worth_planning(problem, local_target=target, rows=request["rows"])
    planned = plan_by_slots(
        problem,
        numbers,
        seed=asked.seed,
        threads=asked.threads,
        time_limit_s=TIME_LIMIT_S,
        progress=lambda share: progress(0.98 * share, f"{round(share * len(numbers))} of {len(numbers)} planned"),
    )
    return {"rows": [row.to_dict() for row in planned]}
