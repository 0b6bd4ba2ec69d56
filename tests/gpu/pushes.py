"""Pushes under decode load: time against bytes, and the longest gap between tokens of running requests."""

from __future__ import annotations

import json
import random
import statistics
import time

import numpy as np

from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement
from profiler.engine.contract_push import PushRequest
from tests.gpu.commands import moeplan
from tests.gpu.machine import Machine
from tests.gpu.measure import BarePush, push_bare
from tests.gpu.results import Results
from tests.gpu.scale import Scale
from tests.gpu.server import Engine
from tests.gpu.streams import StreamTimes, largest_gap_s, quiet_gaps_s, streaming

MARGIN_S = 0.05
PAUSE_S = 0.05
"""Serving between two chunks of a push by layer."""


def measure_pushes(machine: Machine, engine: Engine, results: Results, scale: Scale) -> None:
    """Push random layouts: first in the process, then under load in one go, by layer, and as ``moeplan push``."""
    with EngineClient(engine.url) as client:
        before = client.placement(checksums=True)
        draw = random.Random(11)
        first = push_bare(client, random_layout(before, draw))
        results.add("push", how="first in the process, no load", **_figures(first))
        done: list[tuple[str, BarePush]] = []
        with streaming(machine, engine, streams=scale.gap_streams, new_tokens=scale.gap_tokens) as times:
            time.sleep(3 * scale.between_s)
            for _ in range(scale.gap_rounds):
                time.sleep(scale.between_s)
                done.append(("one go", push_bare(client, random_layout(before, draw))))
                time.sleep(scale.between_s)
                one_by_one = {"layers_per_chunk": 1, "pause_s": PAUSE_S}
                done.append(("by layer", push_bare(client, random_layout(before, draw), **one_by_one)))
            time.sleep(scale.between_s)
        _report(results, times, done)
        with streaming(machine, engine, streams=scale.gap_streams, new_tokens=scale.gap_tokens // 2) as times:
            time.sleep(3 * scale.between_s)
            start_s, end_s = _whole_command(machine, engine, random_layout(before, draw))
            time.sleep(scale.between_s)
        gap_ms = round(1e3 * largest_gap_s(times.arrivals_s, start_s, end_s), 1)
        results.add("push command", gap_ms=gap_ms, command_s=round(end_s - start_s, 2))
        client.put_placement(PushRequest(before.map_LP))
        restored = client.placement(checksums=True)
    results.add("restored", weights_as_before=restored.checksums == before.checksums)
    if restored.checksums != before.checksums:
        raise RuntimeError("after pushing the first layout back, weights are not what they were")


def random_layout(placement: Placement, draw: random.Random) -> Layout:
    """Return a layout with every expert and random replicas, shuffled over all slots."""
    rows = []
    for _ in range(placement.layers):
        row = [*range(placement.experts)]
        row += [draw.randrange(placement.experts) for _ in range(placement.slots - placement.experts)]
        draw.shuffle(row)
        rows.append(row)
    return Layout(np.asarray(rows), gpus=placement.ep_size, experts=placement.experts)


def _whole_command(machine: Machine, engine: Engine, layout: Layout) -> tuple[float, float]:
    """Run ``moeplan push`` with all its checks; return when it began and ended."""
    file = machine.root / "random.json"
    file.write_text(json.dumps({"physical_to_logical_map": layout.slot_to_expert_LP.tolist()}))
    start_s = time.monotonic()
    pushed = moeplan(machine, "push", file, "--engine", engine.url)
    if pushed["status"] != "applied" or not pushed["weights_checked"]:
        raise RuntimeError(f"moeplan push ended as {pushed['status']}")
    return start_s, time.monotonic()


def _figures(push: BarePush) -> dict[str, float | int | list[float]]:
    return {
        "round_trip_ms": round(1e3 * (push.end_s - push.start_s), 1),
        "on_ranks_ms": round(1e3 * push.on_ranks_s, 1),
        "chunk_ms": [round(1e3 * seconds, 1) for seconds in push.chunk_s],
        "changed_slots": push.changed_slots,
        "moved_slots": push.moved_slots,
        "changed_gb": round(push.changed_bytes / 1e9, 3),
        "moved_gb": round(push.moved_bytes / 1e9, 3),
        "gb_per_s": round(push.changed_bytes / 1e9 / push.on_ranks_s, 1) if push.on_ranks_s else None,
    }


def _report(results: Results, times: StreamTimes, done: list[tuple[str, BarePush]]) -> None:
    busy = [(push.start_s, push.end_s) for _how, push in done]
    length_s = statistics.median(end - start for start, end in busy)
    quiet_ms = [1e3 * gap for gap in quiet_gaps_s(times.arrivals_s, busy, length_s=length_s, margin_s=MARGIN_S)]
    if quiet_ms:
        usual = statistics.median(quiet_ms)
        results.add(
            "gap without push",
            intervals=len(quiet_ms),
            length_s=round(length_s, 3),
            median_ms=round(usual, 1),
            worst_ms=round(max(quiet_ms), 1),
        )
    for how, push in done:
        gap_ms = 1e3 * largest_gap_s(times.arrivals_s, push.start_s, push.end_s)
        added = {"added_gap_ms": round(gap_ms - usual, 1)} if quiet_ms else {}
        results.add("push", how=how, gap_ms=round(gap_ms, 1), **added, **_figures(push))
    results.add("push load", requests=times.requests, tokens=times.tokens, failed_requests=times.failed)
