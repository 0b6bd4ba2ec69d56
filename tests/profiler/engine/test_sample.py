"""Sampling token traces by requests, on the replay engine and on engines that answer as a test says."""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placement.errors import BadOption
from placement.model_shape import ModelShape
from profiler.engine.client import EngineClient
from profiler.engine.contract_demand import DemandOptions
from profiler.engine.sample import SampleResult, sample
from profiler.engine.sample_prompts import Prompt
from profiler.engine.sample_requests import MAX_FAILURES_IN_A_ROW
from profiler.errors import EngineRefused, ModelUnknown, RoutedExpertsDisabled, SampleFailed
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.trace import NO_EXPERT, TokenChunk
from profiler.writers.parquet import import_trace
from tests.profiler.engine.messages import MAP_LP, placement
from tests.profiler.engine.server_infos import server_info
from tests.profiler.engine.servers import Handler, Told, answer, engine_that_answers, hangs_up, in_turn
from tests.profiler.replay.clients import client_of_replay
from tests.profiler.replay.traces import made_up

SHAPE = ModelShape(layers=3, experts=4, top_k=2, moe_layers=(1, 2))
PROMPTS = [Prompt(text="one"), Prompt(input_ids=(1, 2, 3, 4), domain="code")]


def generated(
    ids_TLK: np.ndarray, *, prompt_tokens: int, output_tokens: int, cached: int = 0, **meta: Any
) -> dict[str, Any]:
    packed = base64.b64encode(np.ascontiguousarray(ids_TLK, dtype="<i4").tobytes()).decode()
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens, "cached_tokens": cached}
    return {"text": "", "meta_info": {**counts, "dp_rank": 1, "routed_experts": packed, **meta}}


def ids(rows: int, *, largest: int = 3) -> np.ndarray:
    """Return ids of SHAPE's model: a first layer of zeros, which has no experts, then any."""
    drawn_TLK = np.random.default_rng(rows).permuted(np.tile(np.arange(largest + 1), (rows, 3, 1)), axis=-1)[:, :, :2]
    drawn_TLK[:, 0] = 0
    return drawn_TLK


GOOD = generated(ids(6), prompt_tokens=4, output_tokens=3)


def engine(generate: Handler, *, with_placement: dict[str, Any] | None = None, **changes: Any) -> dict[Any, Handler]:
    routes = {("GET", "/server_info"): answer(server_info(**changes)), ("POST", "/generate"): generate}
    if with_placement is not None:
        routes[("GET", "/moeplan/placement")] = answer(placement(**with_placement).to_json())
    return routes


def sampled(routes: dict[Any, Handler], **options: Any) -> tuple[SampleResult, Told]:
    options = {"model": SHAPE, "concurrency": 1, "timeout_s": 20, **options}
    prompts = options.pop("prompts", PROMPTS)
    with engine_that_answers(routes) as (url, told), EngineClient(url) as client:
        return sample(client, prompts, **options), told


def whole(result: SampleResult) -> TokenChunk:
    (chunk, *rest) = result.chunks()
    assert not rest
    return chunk


# ------------------------------------------------------------------ what an answer says


def test_an_answer_becomes_tokens_with_phases_positions_and_a_home() -> None:
    result, _ = sampled(engine(answer(GOOD)), prompts=PROMPTS[1:])
    chunk = whole(result)
    assert chunk.topk_LTK.shape == (3, 6, 2)
    np.testing.assert_array_equal(chunk.topk_LTK[1:], ids(6).transpose(1, 0, 2)[1:])
    assert (chunk.topk_LTK[0] == NO_EXPERT).all(), "the first layer has no experts"
    assert chunk.position_T.tolist() == [0, 1, 2, 3, 4, 5]
    assert chunk.phase_T.tolist() == [1, 1, 1, 1, 2, 2]
    assert chunk.source_T.tolist() == [1] * 6
    assert chunk.domain_T.tolist() == [0] * 6
    header = result.header
    assert (header.kind, header.layers, header.experts, header.top_k) == ("tokens", 3, 4, 2)
    assert (header.source_ranks, header.domain_names, header.engine_version) == (2, ("code",), "0.5.23")


def test_tokens_of_the_prefix_cache_are_left_out() -> None:
    result, _ = sampled(
        engine(answer(generated(ids(6), prompt_tokens=4, output_tokens=3, cached=3))), prompts=PROMPTS[:1]
    )
    assert whole(result).position_T.tolist() == [3, 4, 5]
    assert [notice.code for notice in result.notices] == ["CACHED_TOKENS"]


def test_a_request_that_generates_nothing_has_its_prompt() -> None:
    result, _ = sampled(engine(answer(generated(ids(4), prompt_tokens=4, output_tokens=0))), prompts=PROMPTS[:1])
    assert whole(result).phase_T.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "source_ranks", "source"),
    [({}, 2, 1), ({"enable_dp_attention": False}, None, -1), ({"dp_size": 1}, None, -1)],
)
def test_only_ranks_of_one_ep_group_are_homes(changes: dict[str, Any], source_ranks: int | None, source: int) -> None:
    result, _ = sampled(engine(answer(GOOD), **changes), prompts=PROMPTS[:1])
    assert (result.header.source_ranks, whole(result).source_T[0]) == (source_ranks, source)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([], "JSON object"),
        ({"text": ""}, "meta_info"),
        ({"meta_info": {"prompt_tokens": 4, "completion_tokens": 3}}, "routed_experts"),
        (generated(ids(5), prompt_tokens=4, output_tokens=3), "6 tokens x 3 layers x 2 experts"),
        (generated(ids(6) - 2, prompt_tokens=4, output_tokens=3), "names expert -2"),
        (generated(ids(6), prompt_tokens=4, output_tokens=3, routed_experts="!"), "no base64"),
        (generated(ids(6), prompt_tokens=4, output_tokens=3, routed_experts="é"), "no base64"),
        (generated(ids(6), prompt_tokens=0, output_tokens=7), "prompt_tokens"),
        (generated(ids(6), prompt_tokens=4, output_tokens=3, cached=5), "cached_tokens is 5 of 4"),
    ],
)
def test_an_answer_that_is_none_fails_with_its_reason(bad: Any, words: str) -> None:
    with pytest.raises(SampleFailed, match=words):
        sampled(engine(answer(bad)))


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (answer({"error": "too long"}, status=400), "status 400: .*too long"),
        (answer(raw=b"not json"), "not JSON"),
        (hangs_up, "connection failed"),
    ],
)
def test_a_request_that_fails_says_why(handler: Handler, words: str) -> None:
    with pytest.raises(SampleFailed, match=words):
        sampled(engine(handler))


def test_some_failures_are_told_and_the_rest_is_kept() -> None:
    routes = engine(in_turn(answer({"error": "busy"}, status=503), answer(GOOD)))
    result, _ = sampled(routes)
    assert (len(result.pieces), result.failed) == (1, 1)
    assert [notice.code for notice in result.notices] == ["REQUESTS_FAILED"]
    assert whole(result).request_id_T[0] == 1


def test_an_engine_that_has_gone_is_not_asked_for_ever() -> None:
    routes = engine(in_turn(answer(GOOD), hangs_up))
    result, told = sampled(routes, prompts=PROMPTS * 20)
    assert len(result.pieces) == 1
    assert {notice.code for notice in result.notices} == {"REQUESTS_FAILED", "SAMPLING_STOPPED"}
    assert told.requests.count(("POST", "/generate")) == 1 + MAX_FAILURES_IN_A_ROW


def test_a_slow_answer_is_given_up() -> None:
    def drips(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"{")
        request.wfile.flush()
        request.rfile.read(1)  # never comes

    with pytest.raises(SampleFailed, match=r"no whole answer within 0\.3 s"):
        sampled(engine(drips), timeout_s=0.3, prompts=PROMPTS[:1])


# ------------------------------------------------------------------ ids that are slots


def slots_engine(*placements: dict[str, Any]) -> dict[Any, Handler]:
    """Return an engine of 2 layers and 3 experts on 4 slots that answers with slots."""
    slots_TLK = np.array([[[3, 1], [0, 2]], [[0, 2], [1, 3]]])
    routes = engine(answer(generated(slots_TLK, prompt_tokens=2, output_tokens=1)))
    routes[("GET", "/moeplan/placement")] = in_turn(*(answer(placement(**p).to_json()) for p in placements))
    return routes


def test_slots_are_read_through_the_running_layout() -> None:
    result, _ = sampled(slots_engine({}), model=None, prompts=PROMPTS[:1])
    expected_LTK = [[[MAP_LP[0, 3], MAP_LP[0, 1]], [MAP_LP[0, 0], MAP_LP[0, 2]]],
                    [[MAP_LP[1, 0], MAP_LP[1, 2]], [MAP_LP[1, 1], MAP_LP[1, 3]]]]  # fmt: skip
    np.testing.assert_array_equal(whole(result).topk_LTK, expected_LTK)
    assert [notice.code for notice in result.notices] == ["IDS_WERE_SLOTS"]


def test_slots_are_refused_when_the_layout_changed_meanwhile() -> None:
    with pytest.raises(SampleFailed, match="the layout changed meanwhile"):
        sampled(slots_engine({}, {"generation": 4}), model=None, prompts=PROMPTS[:1])


def test_slots_are_refused_when_the_layout_is_unknown() -> None:
    with pytest.raises(SampleFailed, match="without moeplan's plugin"):
        sampled(engine(answer(generated(ids(6, largest=9), prompt_tokens=4, output_tokens=3))), prompts=PROMPTS[:1])


def test_a_slot_that_no_layout_has_is_refused() -> None:
    routes = engine(answer(generated(np.full((2, 2, 2), 9), prompt_tokens=2, output_tokens=1)), with_placement={})
    with pytest.raises(SampleFailed, match="names slot 9; it has 4 slots"):
        sampled(routes, model=None, prompts=PROMPTS[:1])


# ------------------------------------------------------------------ what is refused before anything is sent


def test_an_engine_without_the_switch_is_told_its_flag() -> None:
    with pytest.raises(RoutedExpertsDisabled, match="--enable-return-routed-experts"):
        sampled(engine(answer(GOOD), enable_return_routed_experts=False))


@pytest.mark.parametrize("bad", [{"concurrency": 0}, {"timeout_s": 0}, {"timeout_s": float("nan")}, {"prompts": []}])
def test_options_that_cannot_be_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        sampled(engine(answer(GOOD)), **bad)


def test_another_key_is_asked_for() -> None:
    routes = engine(answer({"error": "Unauthorized"}, status=401))
    with pytest.raises(EngineRefused, match="API key"):
        sampled(routes, prompts=PROMPTS * 4, concurrency=4)


def test_the_key_is_sent_and_starred_where_the_engine_repeats_it() -> None:
    routes = engine(answer({"error": "key the-secret is odd"}, status=400))
    with (
        engine_that_answers(routes) as (url, told),
        EngineClient(url, "the-secret") as client,
        pytest.raises(SampleFailed) as caught,
    ):
        sample(client, PROMPTS, model=SHAPE)
    assert "the-secret" not in caught.value.detail
    assert any(headers.get("authorization") == "Bearer the-secret" for headers in told.headers)


def test_the_shape_comes_from_the_plugin_or_the_model_folder_or_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ModelUnknown, match="--model"):
        sampled(engine(answer(GOOD)), model=None)
    config = {"num_hidden_layers": 3, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [0]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result, _ = sampled(engine(answer(GOOD), model_path=str(tmp_path)), model=None)
    assert (result.header.layers, result.header.experts) == (3, 4)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelUnknown):
        sampled(engine(answer(GOOD), model_path=str(tmp_path)), model=None)


# ------------------------------------------------------------------ the replay engine


def test_a_sample_of_the_replay_engine_is_what_its_demand_counts(tmp_path: Path) -> None:
    """An engine whose own trace has been served: what is counted then is the sample's, token for token."""
    prompts = [Prompt(text="abcdef" * n, domain="even" if n % 2 == 0 else "odd") for n in range(1, 6)]
    prompts.append(Prompt(input_ids=(5, 6, 7), routed_dp_rank=1, sampling_params={"max_new_tokens": 1}))
    trace = made_up([(6, 4)] * 3, dense_layers=[0])
    with client_of_replay(trace, gpus=2, slots_per_gpu=5, steps_per_s=200, passes=1) as client:
        client.run_steps(100)
        client.start_demand(DemandOptions(window_steps=1000))
        result = sample(client, prompts, sampling_params={"max_new_tokens": 5}, concurrency=3, timeout_s=60)
        client.stop_demand()
        (window,) = client.demand().windows
    header = result.header
    assert result.simulated
    assert (header.source_ranks, header.top_k, header.domain_names) == (2, 2, ("odd", "even"))
    assert result.tokens == sum(6 * n + 4 for n in range(1, 6)) + 3
    for phase in window.phases:
        counts_LSE = np.zeros_like(phase.counts_LSE)
        for chunk in result.chunks():
            rows_T = chunk.phase_T == (1 if phase.phase == "prefill" else 2)
            for layer, ids_TK in enumerate(chunk.topk_LTK):
                chosen = ids_TK[rows_T]
                np.add.at(counts_LSE[layer, chunk.source_T[0]], chosen[chosen != NO_EXPERT].astype(int), 1)
        np.testing.assert_array_equal(counts_LSE, phase.counts_LSE)
    out = tmp_path / "sample.parquet"
    import_trace([result], out)
    (reader,) = open_inputs([out], ReadOptions())
    assert reader.header.domain_names == header.domain_names
    assert sum(len(chunk.request_id_T) for chunk in reader.chunks()) == result.tokens


def test_progress_goes_up_to_the_end() -> None:
    seen: list[float] = []
    sampled(engine(answer(GOOD)), on_progress=seen.append)
    assert seen == [0.5, 1.0]
