"""What recording demand costs: throughput with recording on over throughput with it off, in interleaved pairs."""

from __future__ import annotations

import statistics

from profiler.engine.client import EngineClient
from profiler.engine.contract_demand import DemandOptions
from tests.gpu.intervals import median_interval
from tests.gpu.results import Results
from tests.gpu.server import Engine
from tests.gpu.traffic import Traffic, send

WINDOW_STEPS = 100


def measure_recording(engine: Engine, results: Results, *, phase: str, traffic: Traffic, pairs: int) -> None:
    """Measure pairs, off and on in turns of order, after one of each that does not count."""
    tokens = traffic.output_tokens if phase == "decode" else traffic.prompt_tokens
    ratios, off_rates = [], []
    with EngineClient(engine.url) as client:
        for pair in range(pairs + 1):
            rate = {}
            for recording in (pair % 2 == 1, pair % 2 == 0):
                if recording:
                    client.start_demand(DemandOptions(window_steps=WINDOW_STEPS))
                rate[recording] = tokens / send(engine, traffic)
                if recording:
                    client.stop_demand()
            if pair:
                ratios.append(rate[True] / rate[False])
                off_rates.append(rate[False])
    interval = median_interval(ratios)
    results.add(
        "recording",
        phase=phase,
        pairs=pairs,
        median_ratio=round(interval.median, 4),
        interval_95=[round(interval.low, 4), round(interval.high, 4)],
        off_tokens_per_s=round(statistics.median(off_rates)),
        ratios=[round(ratio, 4) for ratio in ratios],
    )
