"""What a rebalancing cycle looks at: the clock, the engine, the recording, and the plan beside the running layout."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from api.jobs.durable import Json
from api.jobs.rebalance_cycle import RunningCycle
from api.jobs.running import JobRun
from api.loading import load_demand, read_options
from api.rebalancing.evidence import Compared, Drift, Figures, Recording, Timeliness
from api.service import engines as engine_service
from api.service import plans as plan_service
from api.service.engine_access import engine_client, with_retries
from api.store import decisions, engines, plans, schedules, traces
from placement.comparison import CURRENT
from placement.drift import jensen_shannon_distance_L
from placement.errors import BadPlan
from profiler.engine.contract import Placement
from profiler.plan_file import plan_from_document

SHAPE = ("slots", "ep_size", "nodes", "dispatch", "a2a_backend")
"""What a plan takes from an engine as it was last read."""


def read_clock(run: JobRun, cycle: RunningCycle) -> Json:
    """Return the time, and when the engine was last changed."""
    with run.service.database.reading() as session:
        at = schedules.clock(session)
        last = plans.last_change_at(session, cycle.engine_id)
        taken_back = decisions.taken_back_in_row(session, cycle.engine_id)
    return Timeliness(at=at, last_change_at=last, taken_back_in_row=taken_back).to_json()


def look_at_engine(run: JobRun, cycle: RunningCycle) -> Json:
    """Read which layout and which weights run; what is kept of the engine is renewed where it is not true any more."""
    run.report(0.02, "reading the engine")
    placement = _placement(run, cycle)
    with run.service.database.reading() as session:
        kept = engines.find(session, cycle.engine_id).facts or {}
    seen = {name: getattr(placement, name) for name in SHAPE}
    if any(kept.get(name) != value for name, value in seen.items()):
        engine_service.read(run.service, cycle.engine_id)
    return {**_identity(placement), "expert_bytes": placement.expert_bytes or None}


def weigh(run: JobRun, cycle: RunningCycle, trace_id: str, engine: Json) -> Json:
    """Return what a recording is good for, and how far demand is from what the running layout was planned for."""
    run.report(0.36, "weighing the recording")
    with run.service.database.reading() as session:
        trace = traces.find(session, trace_id)
        running = plans.newest_with_layout(session, cycle.engine_id, engine["layout_hash"])
    recording = Recording.of_trace(trace.facts or {}, trace.warnings)
    drift = Drift(mean=None)
    if running is not None:
        document = json.loads(run.service.files.read(str(running.sha256)))
        planned_LE = plan_from_document(document, name=f"plan {running.id}").heat_LE
        demand = load_demand(
            [run.service.files.path(str(trace.sha256))], read_options(), gpus=1, window_by="file", sources="uniform"
        ).demand
        drift = drift_between(planned_LE, demand.tokens_WLE.sum(axis=0))
    return {
        "recording": recording.to_json(),
        "drift": {**drift.to_json(), "running_plan_id": None if running is None else running.id},
        "recorded_at": (trace.facts or {}).get("recorded_at"),
    }


def drift_between(planned_LE: npt.NDArray[np.integer[Any]], now_LE: npt.NDArray[np.integer[Any]]) -> Drift:
    """Return the mean and the worst Jensen-Shannon distance over the layers that have traffic in both."""
    if planned_LE.shape != now_LE.shape:
        return Drift(mean=None)  # a plan of another model: the engine has been given new weights
    distance_L = jensen_shannon_distance_L(planned_LE, now_LE)
    compared = np.flatnonzero(~np.isnan(distance_L))
    if not compared.size:
        return Drift(mean=None)
    worst = int(compared[distance_L[compared].argmax()])
    return Drift(mean=float(distance_L[compared].mean()), worst=float(distance_L[worst]), worst_layer=worst)


def compare(run: JobRun, cycle: RunningCycle, plan_id: str, engine: Json, *, recorded_at: str) -> Json:
    """Put the plan beside the running layout, as the ruler judged both on the held-out windows."""
    run.report(0.7, "comparing with the running layout")
    with run.service.database.reading() as session:
        row = plans.find(session, plan_id)
    made = plan_service.made(run.service, row)
    running = made.baselines.get(CURRENT)
    if running is None or running.holdout is None or made.metrics.holdout is None:
        raise BadPlan(f"the plan {plan_id} does not judge the running layout on held-out windows.")
    compared = Compared(
        objective=made.options.objective,
        local_scope=made.options.local_scope,
        running=Figures.of(running.holdout),
        planned=Figures.of(made.metrics.holdout),
        max_imbalance=made.options.max_imbalance_used,
        moved_slots=made.moves.moved_slots,
        moved_bytes=made.moves.moved_bytes,
        recorded_at=datetime.fromisoformat(recorded_at),
        engine_changed=how_engine_changed(run, cycle, {**engine, "layout_hash": row.current_hash}),
    )
    before, after = compared.values
    numbers = {
        "metric": compared.metric, "before": before, "planned": after, "gain": compared.gain,
        "relative_gain": compared.relative_gain,
        "held_out_windows": [each.name for each in made.metrics.holdout.windows],
        "running_figures": asdict(compared.running), "planned_figures": asdict(compared.planned),
        "moved_slots": compared.moved_slots, "moved_bytes": compared.moved_bytes, "status": str(made.status),
    }  # fmt: skip
    return {"compared": compared.to_json(), "timeliness": read_clock(run, cycle), "numbers": numbers}


def how_engine_changed(run: JobRun, cycle: RunningCycle, before: Json) -> str:
    """Say how the engine differs from what it was, as the end of a sentence; nothing where it does not."""
    placement = _placement(run, cycle)
    after = _identity(placement)
    if placement.push_in_progress:
        return "somebody is changing its layout"
    if after["layout_hash"] != before["layout_hash"]:
        return f"it runs the layout {after['layout_hash'][:12]}, not {str(before['layout_hash'])[:12]}"
    if after["weight_updates"] != before["weight_updates"]:
        return "its weights were updated"
    if after["generation"] != before["generation"] or after["ep_size"] != before["ep_size"]:
        return "it was started anew, or its layout was changed and changed back"
    return ""


def _placement(run: JobRun, cycle: RunningCycle) -> Placement:
    with run.service.database.reading() as session:
        engine = engines.find(session, cycle.engine_id)
    with engine_client(run.service, engine) as client:
        return with_retries(client.placement)


def _identity(placement: Placement) -> Json:
    return {name: getattr(placement, name) for name in ("layout_hash", "generation", "weight_updates", "ep_size")}
