"""What recording demand costs: the rate of tokens with recording on over the rate with it off, in interleaved pairs."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence

from profiler.engine.client import EngineClient
from profiler.engine.contract_demand import DemandOptions
from tests.gpu.intervals import median_interval
from tests.gpu.machine import Machine
from tests.gpu.results import Results
from tests.gpu.scale import Scale
from tests.gpu.server import Engine
from tests.gpu.streams import streaming
from tests.gpu.traffic import Traffic, send

WINDOW_STEPS = 100
SETTLE_S = 0.15
"""After recording was switched, before its rate counts."""

Interval = tuple[float, float]


def measure_decode_recording(machine: Machine, engine: Engine, results: Results, scale: Scale) -> None:
    """Switch recording on and off while the same requests decode, and compare neighbouring intervals.

    No request begins or ends within an interval, so that only decode steps are compared; in the middle of each
    interval with recording windows are fetched, as a capture does.
    """
    off, on = [], []
    with EngineClient(engine.url) as client:
        for session in range(scale.recording_sessions):
            spans: list[tuple[Interval, Interval]] = []
            with streaming(machine, engine, streams=scale.gap_streams, new_tokens=scale.gap_tokens) as times:
                time.sleep(scale.recording_s)
                for pair in range(scale.recording_pairs):
                    order = (False, True) if (pair + session) % 2 else (True, False)
                    span = {recording: _interval(client, recording, scale.recording_s) for recording in order}
                    spans.append((span[False], span[True]))
            ends_s = min(arrivals[-1] for arrivals in times.arrivals_s if arrivals)
            arrivals_s = sorted(at_s for arrivals in times.arrivals_s for at_s in arrivals)
            for without, with_recording in spans:
                if max(without[1], with_recording[1]) < ends_s:
                    off.append(token_rate(arrivals_s, without))
                    on.append(token_rate(arrivals_s, with_recording))
    _add(results, engine, "decode", off, on)


def measure_prefill_recording(engine: Engine, results: Results, *, traffic: Traffic, pairs: int) -> None:
    """Send the same prompts with recording on and off, after one pair that does not count."""
    off, on = [], []
    with EngineClient(engine.url) as client:
        for pair in range(pairs + 1):
            rate = {}
            for recording in (pair % 2 == 1, pair % 2 == 0):
                if recording:
                    client.start_demand(DemandOptions(window_steps=WINDOW_STEPS))
                rate[recording] = traffic.prompt_tokens / send(engine, traffic)
                if recording:
                    client.stop_demand()
            if pair:
                off.append(rate[False])
                on.append(rate[True])
    _add(results, engine, "prefill", off, on)


def token_rate(arrivals_s: Sequence[float], interval: Interval) -> float:
    """Return tokens per second within an interval; ``arrivals_s`` is sorted."""
    start_s, end_s = interval
    return (bisect_left(arrivals_s, end_s) - bisect_left(arrivals_s, start_s)) / (end_s - start_s)


def _interval(client: EngineClient, recording: bool, length_s: float) -> Interval:
    if recording:
        client.start_demand(DemandOptions(window_steps=WINDOW_STEPS))
    time.sleep(SETTLE_S)
    start_s = time.monotonic()
    time.sleep(length_s / 2)
    if recording:
        client.demand()
    time.sleep(max(0.0, start_s + length_s - time.monotonic()))
    end_s = time.monotonic()
    if recording:
        client.stop_demand()
    return start_s, end_s


def _add(results: Results, engine: Engine, phase: str, off: Sequence[float], on: Sequence[float]) -> None:
    if not off:
        raise RuntimeError(f"no whole pair of {phase} intervals: the requests ended too early")
    ratios = [with_recording / without for without, with_recording in zip(off, on, strict=True)]
    interval = median_interval(ratios)
    results.add(
        "recording",
        engine=engine.setup.name,
        phase=phase,
        pairs=len(ratios),
        median_ratio=round(interval.median, 4),
        interval_95=[round(interval.low, 4), round(interval.high, 4)],
        off_tokens_per_s=round(statistics.median(off)),
        ratios=[round(ratio, 4) for ratio in ratios],
    )
