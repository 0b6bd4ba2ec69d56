"""Layouts beside each other on one engine: pushed in turn, the same traffic replayed, predicted against counted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from profiler.engine.client import EngineClient
from tests.gpu.layouts import copies_per_token, predicted
from tests.gpu.measure import NO_STEPS, Dispatched, StepTimes, count_dispatched, push_bare, time_steps
from tests.gpu.results import Results
from tests.gpu.server import Engine
from tests.gpu.step_prediction import PredictedStep
from tests.gpu.traffic import Routed, Traffic, send

MOST_SENDS = 12
"""After so many repeats no more steps are waited for."""


@dataclass(frozen=True)
class Prediction:
    """What layouts are predicted from.

    Attributes
    ----------
    demand : Demand
        Recorded while the traffic ran under another layout.
    routed : Routed or None
        Single tokens' experts, for copies; None where tokens do not travel.
    dispatch : Dispatch
    steps : mapping
        Predicted times by name of the layout, where there are any.
    """

    demand: Demand
    routed: Routed | None
    dispatch: Dispatch
    steps: Mapping[str, PredictedStep] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """How layouts are measured.

    Attributes
    ----------
    prefill : Traffic
        Its steps are timed and its pairs counted.
    decode : Traffic or None
        Its throughput is measured.
    rounds : int
        Every layout is pushed and measured so often, in interleaved order.
    repeats : int
        Times that the prefill traffic is sent while steps are timed.
    least_steps : int
        It is sent more often while fewer full steps were seen.
    until_s : float
        Time of the run after which no further layout is pushed; which are left out is a finding.
    """

    prefill: Traffic
    decode: Traffic | None
    rounds: int
    repeats: int
    least_steps: int = 0
    until_s: float = math.inf


def compare_layouts(
    engine: Engine,
    client: EngineClient,
    results: Results,
    *,
    layouts: Mapping[str, Layout],
    prediction: Prediction,
    measurement: Measurement,
    case: str = "",
) -> None:
    """Push every layout in turn and measure it; every second round goes backwards. The last one stays.

    ``case`` names the traffic in what is found. Steps' times are predicted from the first layout's time outside the
    MoE layers and each layout's predicted time inside.
    """
    where = {"engine": engine.setup.name, "case": case}
    names = list(layouts)
    timed = dict.fromkeys(names, NO_STEPS)
    left_out = []
    for number in range(measurement.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            if results.elapsed_s > measurement.until_s:
                left_out.append(f"{name}, round {number}")
                continue
            layout = layouts[name]
            if client.placement().layout_hash != layout.hash:
                push = push_bare(client, layout)
                moved = {"push_ms": round(1e3 * push.on_ranks_s, 1), "moved_slots": push.moved_slots}
            else:
                moved = {}
            send(engine, measurement.prefill)  # new shapes of batches are tuned on their first run
            what = {**where, "layout": name, "round": number}
            timed[name] += _time(engine, results, what, measurement, moved)
            if number == 0:
                counted = count_dispatched(engine, lambda: send(engine, measurement.prefill), phase="prefill")
                judge_counts(results, {**where, "layout": name}, layout, prediction, counted)
    if left_out:
        results.add("left out", **where, layouts=left_out)
    _judge_steps(results, where, timed, prediction)


def gather_steps(engine: Engine, replay: Callable[[], object], *, repeats: int, least_steps: int) -> StepTimes:
    """Replay traffic until enough full prefill steps were timed."""
    times = NO_STEPS
    sends = 0
    while sends < repeats or (times.steps < least_steps and sends < MOST_SENDS):
        more = max(1, repeats - sends)

        def some(more: int = more) -> None:
            for _ in range(more):
                replay()

        times += time_steps(engine, some, phase="prefill")
        sends += more
    return times


def _time(
    engine: Engine,
    results: Results,
    what: Mapping[str, object],
    measurement: Measurement,
    moved: Mapping[str, float],
) -> StepTimes:
    seconds: list[float] = []
    times = gather_steps(
        engine,
        lambda: seconds.append(send(engine, measurement.prefill)),
        repeats=measurement.repeats,
        least_steps=measurement.least_steps,
    )
    rates = {"prefill_tokens_per_s": round(measurement.prefill.prompt_tokens / min(seconds))}
    if measurement.decode is not None:
        rates["decode_tokens_per_s"] = round(measurement.decode.output_tokens / send(engine, measurement.decode))
    results.add(
        "layout times",
        **what,
        steps=times.steps,
        **times.medians(),
        **rates,
        **moved,
        all_step_ms=[round(step_ms, 2) for step_ms in times.step_ms],
    )
    return times


def _judge_steps(
    results: Results, where: Mapping[str, object], timed: Mapping[str, StepTimes], prediction: Prediction
) -> None:
    """Hold predicted against measured times of steps; the first layout says what a step takes outside MoE layers."""
    first = next(iter(timed.values())).medians()
    if not prediction.steps or "step_ms" not in first:
        return
    inside = "slowest_experts_ms" if prediction.dispatch is Dispatch.EVEN else "moe_ms"
    if inside not in first:
        return
    outside_ms = first["step_ms"] - first[inside]
    for name, times in timed.items():
        medians, step = times.medians(), prediction.steps.get(name)
        if step is None or "step_ms" not in medians or inside not in medians:
            continue
        measured_ms = medians["step_ms"]
        quarters = statistics.quantiles(times.step_ms, n=4) if times.steps > 1 else [measured_ms] * 3
        results.add(
            "layout step",
            **where,
            layout=name,
            steps=times.steps,
            measured_ms=measured_ms,
            quarters_ms=[round(quarters[0], 3), round(quarters[2], 3)],
            predicted_ms=round(outside_ms + step.moe_ms, 3),
            relative_error=round(measured_ms / (outside_ms + step.moe_ms) - 1, 4),
            predicted_from_counts_ms=round(outside_ms + step.moe_from_counts_ms, 3),
            outside_moe_ms=round(outside_ms, 3),
            moe_ms={"predicted": round(step.moe_ms, 3), "measured": medians[inside]},
            experts_ms={"predicted": round(step.experts_ms, 3), "measured": medians["slowest_experts_ms"]},
        )


def judge_counts(
    results: Results, what: Mapping[str, object], layout: Layout, prediction: Prediction, counted: Dispatched
) -> None:
    """Hold what was counted under a layout against what was predicted."""
    imbalance, local_gpu = predicted(layout, prediction.demand, gpus=layout.gpus, dispatch=prediction.dispatch)
    copies = (
        None if prediction.routed is None else copies_per_token(layout, prediction.routed, dispatch=prediction.dispatch)
    )
    pairs = {
        "imbalance": (imbalance, counted.imbalance),
        "local_gpu": (local_gpu, counted.local_gpu),
        "copies_per_token": (copies, counted.copies_per_token),
    }
    figures = {}
    for figure, (before, after) in pairs.items():
        if before is None or after is None:
            continue
        figures |= {figure: {"predicted": round(before, 4), "counted": round(after, 4)}}
        if before:
            figures[figure]["relative_error"] = round(after / before - 1, 5)
    results.add("layout counts", **what, tokens=counted.tokens, **figures)
