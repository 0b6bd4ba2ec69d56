"""Layouts under requests in flight: pushed live in turn, a window of serving each, then a while of counting."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.demand import Demand
from placement.layout import Layout
from profiler.engine.client import EngineClient
from tests.gpu.compare import Prediction, judge_counts
from tests.gpu.front_end import busiest, front_end_seconds
from tests.gpu.layouts import whole_map
from tests.gpu.load import Load, loading
from tests.gpu.load_metrics import LoadTimes, Spread, Window, busiest_client, served
from tests.gpu.machine import Machine
from tests.gpu.measure import Dispatched, count_dispatched, push_bare
from tests.gpu.results import Results
from tests.gpu.server import Engine
from tests.gpu.serving_cases import ServingScale


@dataclass(frozen=True)
class Seen:
    """One window under one layout."""

    layout: str
    round: int
    window: Window
    front_end: tuple[str, float]
    push_ms: float | None


def in_turn(names: Sequence[str], rounds: int) -> list[tuple[int, str]]:
    """Return rounds and names in the order of measurement: every second round goes backwards."""
    return [
        (number, name) for number in range(rounds) for name in (names if number % 2 == 0 else list(reversed(names)))
    ]


def serve_under_layouts(
    machine: Machine,
    engine: Engine,
    client: EngineClient,
    results: Results,
    *,
    what: Mapping[str, object],
    layouts: Mapping[str, Layout],
    prediction: Prediction,
    load: Load,
    scale: ServingScale,
    dense_layers: int,
) -> None:
    """Keep the load up, push every layout in turn and measure it; the last one stays.

    ``what`` names engine, case and concurrency in what is found.
    """
    seen: list[Seen] = []
    counted: dict[str, Dispatched] = {}
    with loading(machine, engine, load) as times:
        time.sleep(scale.ramp_s)
        for number, name in in_turn(list(layouts), scale.rounds):
            push_ms = _push(client, layouts[name], dense_layers)
            seen.append(_window(engine, scale, name, number, push_ms))
            if number == 0:
                counted[name] = count_dispatched(
                    engine,
                    lambda: time.sleep(scale.count_s),
                    phase="any",
                    home_shares_S=_home_shares_S(prediction.demand),
                )
    for one in seen:
        _report(results, what, times, one, gpus=machine.gpus, layouts=layouts)
    for name, found in counted.items():
        judge_counts(results, {**what, "layout": name}, layouts[name], prediction, found)


def _home_shares_S(demand: Demand) -> list[float]:
    tokens_S = demand.tokens_WLSE.sum(axis=(0, 1, 3))
    return [float(share) for share in tokens_S / tokens_S.sum()]


def _push(client: EngineClient, layout: Layout, dense_layers: int) -> float | None:
    """Push a layout, unless it runs, and return the milliseconds that it took on the ranks."""
    if client.placement().layout_hash == whole_map(layout, dense_layers=dense_layers).hash:
        return None
    return round(1e3 * push_bare(client, layout, dense_layers=dense_layers).on_ranks_s, 1)


def _window(engine: Engine, scale: ServingScale, name: str, number: int, push_ms: float | None) -> Seen:
    since_s = time.monotonic()
    time.sleep(scale.settle_s)
    before, start_s = front_end_seconds(engine.pid), time.monotonic()
    time.sleep(scale.window_s)
    end_s, after = time.monotonic(), front_end_seconds(engine.pid)
    busy = busiest(before, after, length_s=end_s - start_s)
    return Seen(name, number, Window(since_s, start_s, end_s), busy, push_ms)


def _report(
    results: Results,
    what: Mapping[str, object],
    times: LoadTimes,
    one: Seen,
    *,
    gpus: int,
    layouts: Mapping[str, Layout],
) -> None:
    found = served(times.requests, one.window)
    results.add(
        "served",
        **what,
        layout=one.layout,
        round=one.round,
        slots=layouts[one.layout].slots,
        output_tokens_per_s_gpu=round(found.output_tokens_per_s / gpus, 1),
        input_tokens_per_s_gpu=round(found.input_tokens_per_s / gpus, 1),
        rates_by=found.rates_by,
        first_token_ms=_milliseconds(found.first_token_s),
        token_ms=_milliseconds(found.token_s),
        push_ms=one.push_ms,
        client_share=round(busiest_client(times, one.window), 3),
        front_end=one.front_end[0],
        front_end_share=round(one.front_end[1], 3),
    )


def _milliseconds(of: Spread | None) -> dict[str, float] | None:
    if of is None:
        return None
    return {"median": round(1e3 * of.median, 3), "p99": round(1e3 * of.p99, 3), "count": of.count}
