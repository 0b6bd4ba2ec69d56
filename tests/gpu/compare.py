"""Layouts beside each other on one engine: pushed in turn, the same traffic replayed, predicted against counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from profiler.engine.client import EngineClient
from tests.gpu.layouts import copies_per_token, predicted
from tests.gpu.measure import Dispatched, count_dispatched, push_bare, time_steps
from tests.gpu.results import Results
from tests.gpu.server import Engine
from tests.gpu.traffic import Routed, Traffic, send


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
    """

    demand: Demand
    routed: Routed | None
    dispatch: Dispatch


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
    """

    prefill: Traffic
    decode: Traffic | None
    rounds: int
    repeats: int


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

    ``case`` names the traffic in what is found.
    """
    where = {"engine": engine.setup.name, "case": case}
    names = list(layouts)
    for number in range(measurement.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            layout = layouts[name]
            if client.placement().layout_hash != layout.hash:
                push = push_bare(client, layout)
                moved = {"push_ms": round(1e3 * push.on_ranks_s, 1), "moved_slots": push.moved_slots}
            else:
                moved = {}
            send(engine, measurement.prefill)  # new shapes of batches are tuned on their first run
            _time(engine, results, {**where, "layout": name, "round": number}, measurement, moved)
            if number == 0:
                counted = count_dispatched(engine, lambda: send(engine, measurement.prefill), phase="prefill")
                _judge(results, {**where, "layout": name}, layout, prediction, counted)


def _time(
    engine: Engine,
    results: Results,
    what: Mapping[str, object],
    measurement: Measurement,
    moved: Mapping[str, float],
) -> None:
    seconds = []

    def replay() -> None:
        seconds.extend(send(engine, measurement.prefill) for _ in range(measurement.repeats))

    times = time_steps(engine, replay, phase="prefill")
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
    )


def _judge(
    results: Results, what: Mapping[str, object], layout: Layout, prediction: Prediction, counted: Dispatched
) -> None:
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
