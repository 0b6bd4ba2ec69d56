"""The step of a rollout that measures: demand is recorded from the engine and both layouts are judged on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.jobs.durable import Json
from api.jobs.rollout_aim import Aim, layout_of, planned, stored_placement
from api.jobs.rollout_engine import PATIENT_ATTEMPTS, PATIENT_S, require_runs
from api.jobs.rollout_verdict import LEAST_PAIRS_PER_GPU, Verdict, figures, judge, judged_metric, not_measured
from api.service.engine_access import engine_client, with_retries
from api.service.engines import dispatch_of, topology_of
from placement.demand import Demand
from placement.errors import EmptyProfile
from placement.layout import Layout
from placement.metrics import Metrics
from placement.score import score
from placement.topology import Topology, flat_or_nodes
from profiler.engine.capture import CaptureResult, capture
from profiler.engine.client import EngineClient
from profiler.engine.contract import REPLAY_ENGINE, Placement
from profiler.engine.contract_demand import DemandWindow
from profiler.engine.contract_measured import Measured
from profiler.errors import EngineError
from profiler.window_by import WindowBy
from profiler.windows import build_demand


def measure(aim: Aim, checked: Json, verified: Json) -> Json:
    """Record the engine's demand for the rollout's time and judge both layouts on it.

    Windows are as :func:`profiler.engine.capture.capture` cuts them by default, like those of recordings to plan from.
    Loads follow from the demand by the engine's own rule of dispatch; a replay engine's own counts stand beside them.

    Returns
    -------
    dict
        ``measured``, ``measured_before`` (figures, or None) and ``verdict``; that an engine which runs the layout could
        not be measured is a verdict too.

    Raises
    ------
    EngineError
        The engine does not run the layout any more, or does not say.
    """
    with engine_client(aim.service, aim.engine) as client:
        recorded = _recorded(aim, client)
        seen = with_retries(client.placement, attempts=PATIENT_ATTEMPTS, longest_s=PATIENT_S)
    before = stored_placement(aim.service, checked["sha256"])
    require_runs(seen, before, aim)
    if seen.boot_id != verified["boot_id"]:
        why = "the engine was started anew meanwhile, with the pushed layout"
        return unmeasured(not_measured("ENGINE_RESTARTED", why))
    if isinstance(recorded, Verdict):
        return unmeasured(recorded)
    reason = unusable(recorded.trace, seen)
    if reason is not None:
        return unmeasured(reason)
    ruler = _Ruler(aim, seen, _demand(recorded.trace, seen))
    measured, old = figures(ruler.score(aim.layout)), figures(ruler.score(layout_of(before)))
    options = planned(aim.service, str(aim.rollout.plan_id)).options
    verdict = judge(
        judged_metric(options.objective, options.local_scope, measured),
        measured=measured,
        before=old,
        predicted=checked["predicted"],
        margin=aim.rollout.roll_back_margin,
    )
    measured |= {"seconds": aim.rollout.measure_seconds, "steps": recorded.trace.steps, "counted": recorded.counted}
    return {"measured": measured, "measured_before": old, "verdict": verdict.to_json()}


def unmeasured(verdict: Verdict) -> Json:
    """Return what is stored where nothing was measured."""
    return {"measured": None, "measured_before": None, "verdict": verdict.to_json()}


@dataclass(frozen=True)
class _Recorded:
    """What was recorded, and where the engine says that it computed it (None where it does not say)."""

    trace: CaptureResult
    counted: Json | None


def _recorded(aim: Aim, client: EngineClient) -> _Recorded | Verdict:
    """Record demand; what prevents that, and is no sign that the engine is lost, is a verdict."""
    count = _counter(client)
    try:
        first = count()
        trace = capture(
            client,
            seconds=aim.rollout.measure_seconds,
            # Of an attempt that died, a recording may still be open.
            take_over=aim.run.attempt > 1,
            on_window=_telling(aim),
        )
        return _Recorded(trace, _counted(first, count()))
    except EmptyProfile:
        return not_measured("NO_TRAFFIC", f"the engine served no token in {aim.rollout.measure_seconds:g} s")
    except EngineError as error:
        return not_measured(error.code, error.detail)


def _telling(aim: Aim) -> Callable[[DemandWindow], None]:
    told_s = 0.0

    def on_window(window: DemandWindow) -> None:
        nonlocal told_s
        told_s += window.seconds
        share = min(1.0, told_s / aim.rollout.measure_seconds)
        aim.report(0.7 + 0.2 * share, f"measuring: {window.first_step + window.steps} steps served")

    return on_window


def unusable(trace: CaptureResult, seen: Placement) -> Verdict | None:
    """Say why a recording cannot be judged by, where it cannot."""
    generations = {number for window in trace.windows for number in (window.generation, window.last_generation)}
    if generations - {seen.generation}:
        return not_measured("LAYOUT_CHANGED", "the layout changed, and changed back, while demand was recorded")
    pairs = sum(int(phase.counts_LSE.sum()) for window in trace.windows for phase in window.phases)
    layers = len(seen.moe_layers) or seen.layers
    per_gpu = pairs / (layers * seen.ep_size)
    if per_gpu < LEAST_PAIRS_PER_GPU:
        return not_measured(
            "TOO_LITTLE_TRAFFIC",
            f"the engine served {trace.tokens} tokens meanwhile, {per_gpu:.0f} (token, expert) pairs for every GPU and "
            f"layer; {LEAST_PAIRS_PER_GPU} are needed to tell layouts apart",
        )
    return None


def _demand(trace: CaptureResult, seen: Placement) -> Demand:
    return build_demand([trace], window_by=WindowBy(), gpus=seen.ep_size).demand


class _Ruler:
    """Scores layouts on one demand as the engine would serve it."""

    def __init__(self, aim: Aim, seen: Placement, demand: Demand) -> None:
        self._demand = demand
        self._topology: Topology = topology_of(aim.engine) or flat_or_nodes(gpus=seen.ep_size, nodes=seen.nodes)[0]
        self._dispatch = dispatch_of(dispatch=seen.dispatch, a2a_backend=seen.a2a_backend)

    def score(self, layout: Layout) -> Metrics:
        return score(layout, self._demand, self._topology, dispatch=self._dispatch)


def _counter(client: EngineClient) -> Callable[[], Measured | None]:
    """Return how to ask for the engine's own counts by source and serving GPU; only replay engines have them."""
    simulated = with_retries(client.health).engine == REPLAY_ENGINE
    return lambda: client.measured() if simulated else None


def _counted(first: Measured | None, last: Measured | None) -> Json | None:
    """Return figures of what the engine itself counted in between, all of it as one window."""
    if first is None or last is None or first.generation != last.generation:
        return None
    counts_LSG: Any = last.counts_LSG - first.counts_LSG
    load_LG = counts_LSG.sum(axis=1)
    if not load_LG.any():
        return None
    imbalance = float(load_LG.max(axis=1).sum() / load_LG.mean(axis=1).sum())
    local = None if last.local_gpu is None else float(counts_LSG.trace(axis1=1, axis2=2).sum() / counts_LSG.sum())
    return {"local_gpu": local, "imbalance": imbalance, "balancedness": 1 / imbalance}
