"""The job that plans for other numbers of slots than a plan has."""

from __future__ import annotations

from api.jobs.durable import Json
from api.jobs.plan_work import SOLVE_GRACE_S, plan_request
from api.jobs.running import Finish, JobRun
from api.jobs.task_process import run_task

ROWS = 8
"""Numbers of slots that are planned for, beside the plan's own and the fewest that can reach the target."""


def weigh_slots(run: JobRun) -> Finish:
    """Plan for several numbers of slots, on what the plan was made from; the figures are the job's result."""
    planned = run.step("weigh slots", lambda: _planned(run))
    return lambda session: {"plan_id": run.subject_id, **planned}


def _planned(run: JobRun) -> Json:
    request = {**plan_request(run, {}), "rows": ROWS}
    # What runs, and limits on going there, say nothing about other numbers of slots.
    for option in ("max_moved_slots", "max_moved_bytes", "max_overflow", "pareto"):
        request["options"].pop(option, None)
    return run_task(
        "size",
        request,
        on_progress=run.report,
        require_going_on=run.require_going_on,
        grace_s=SOLVE_GRACE_S,
    )
