"""What works on a real SGLang without moeplan's routes: its own recorder in every mode, and sampling of requests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from profiler.engine import dump_capture
from profiler.engine.client import EngineClient
from profiler.engine.doctor import examine
from profiler.engine.dump_capture import DumpCapture, capture_dumps
from profiler.engine.sample import sample
from profiler.engine.sample_prompts import Prompt
from profiler.trace import NO_EXPERT, CountChunk, TokenChunk
from tests.engine.conftest import OneEngine
from tests.engine.engine_server import EngineServer, EngineSetup
from tests.engine.test_demand import EXPERTS, LAYERS, TOP_K, fetch, start, stop, summed
from tests.engine.test_placement import pushed, random_map, read_placement
from tests.engine.traffic import NEW_TOKENS, prompts, routed_by_requests

RANKS = 2
REQUESTS = [(prompt, 0) for prompt in prompts(5, seed=61)]
PROMPTS = [Prompt(input_ids=tuple(prompt)) for prompt in prompts(6, seed=62)]
GREEDY = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}


def recording(mode: str) -> EngineSetup:
    # With the overlap schedule the stock recorder also counts the step that was launched when a request ended.
    return EngineSetup(arguments=("--disable-overlap-schedule", "--expert-distribution-recorder-mode", mode))


def recorded_with_traffic(
    engine: EngineServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[DumpCapture, np.ndarray]:
    """Record just as long as requests are served; return the recording and their routing by the engine's account."""
    routed: list[np.ndarray] = []

    def serve(_seconds: float) -> None:
        sent = {"layers": LAYERS, "experts": EXPERTS, "top_k": TOP_K, "sources": 1}
        routed.append(np.sum(list(routed_by_requests(engine, REQUESTS, **sent).counts_LSE.values()), axis=0)[:, 0])

    monkeypatch.setattr(dump_capture, "time", SimpleNamespace(sleep=serve))
    with EngineClient(engine.url, timeout_s=60) as client:
        return capture_dumps(client, folder, seconds=1), routed[0]


def counts_LE(recorded: DumpCapture) -> np.ndarray:
    total_LE = np.zeros((LAYERS, EXPERTS), dtype=np.int64)
    for chunk in recorded.chunks():
        if isinstance(chunk, CountChunk):
            total_LE += chunk.tokens_LSE.sum(axis=1)
            continue
        for layer in range(LAYERS):
            ids = chunk.topk_LTK[layer][chunk.topk_LTK[layer] != NO_EXPERT]
            total_LE[layer] += np.bincount(ids, minlength=EXPERTS)
    return total_LE


@pytest.mark.parametrize("mode", ["stat", "per_pass", "per_token"])
def test_the_stock_recorder_is_read_in_every_mode(
    one_engine: OneEngine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    engine = one_engine.get(recording(mode))
    folder = engine.log_file.parent / "dumps"
    folder.mkdir(exist_ok=True)
    recorded, routed_LE = recorded_with_traffic(engine, folder, monkeypatch)
    again, routed_again_LE = recorded_with_traffic(engine, folder, monkeypatch)

    for one, expected_LE in ((recorded, routed_LE), (again, routed_again_LE)):
        assert len(one.files) == (1 if mode == "stat" else RANKS)
        assert one.header.engine_version == engine.version
        assert (one.header.layers, one.header.experts) == (LAYERS, EXPERTS)
        # Without an all-to-all backend every rank sees every token. Rows and passes of one rank are kept; sums are the
        # engine's own, over all ranks.
        np.testing.assert_array_equal(counts_LE(one), expected_LE * (RANKS if mode == "stat" else 1))
    assert set(recorded.files).isdisjoint(again.files)


def test_a_recording_with_overlap_holds_at_most_a_token_more_for_every_request(
    one_engine: OneEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = one_engine.get(EngineSetup(arguments=("--expert-distribution-recorder-mode", "per_token")))
    folder = engine.log_file.parent / "dumps"
    folder.mkdir(exist_ok=True)
    recorded, routed_LE = recorded_with_traffic(engine, folder, monkeypatch)

    assert "UNUSED_TOKENS_COUNTED" in [notice.code for notice in recorded.notices]
    more_LE = counts_LE(recorded) - routed_LE
    assert more_LE.min() >= 0
    assert set((more_LE.sum(axis=1) / TOP_K).tolist()) <= {0, len(REQUESTS)}


def test_sampled_requests_are_what_the_plugin_counts_also_after_a_push(one_engine: OneEngine) -> None:
    engine = one_engine.get(recording("per_token"))
    before = read_placement(engine)
    pushed(engine, random_map(before, seed=63))
    engine.flush_cache()
    start(engine, window_steps=4)
    with EngineClient(engine.url, timeout_s=60) as client:
        sampled = sample(client, PROMPTS, sampling_params=GREEDY, concurrency=3, timeout_s=120)
    stop(engine)
    demand = summed(fetch(engine).windows, sources=1)
    pushed(engine, before.map_LP.tolist())

    assert sampled.failed == 0
    assert [notice.code for notice in sampled.notices if notice.code != "IDS_WERE_SLOTS"] == []
    assert sampled.header.source_ranks is None
    for number, phase in ((1, "prefill"), (2, "decode")):
        counts = np.zeros((LAYERS, EXPERTS), dtype=np.int64)
        for chunk in sampled.chunks():
            assert isinstance(chunk, TokenChunk)
            rows_LTK = chunk.topk_LTK[:, chunk.phase_T == number]
            for layer in range(LAYERS):
                counts[layer] += np.bincount(rows_LTK[layer].ravel(), minlength=EXPERTS)
        np.testing.assert_array_equal(counts, demand.counts_LSE[phase][:, 0])


def test_the_doctor_reads_a_real_engine(one_engine: OneEngine) -> None:
    engine = one_engine.get(recording("per_token"))
    diagnosis = examine(engine.url)
    states = {check.name: check.state for check in diagnosis.checks}
    assert diagnosis.facts is not None
    assert (diagnosis.facts.version, diagnosis.facts.recorder_mode) == (engine.version, "per_token")
    assert diagnosis.ready
    assert {name for name, state in states.items() if state == "missing"} == {"locality"}
    assert diagnosis.architectures
