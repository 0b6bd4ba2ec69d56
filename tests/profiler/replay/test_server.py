"""The replay engine's routes over a real socket: access, words, refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from profiler.engine.contract_demand import MAX_RING_WINDOWS
from profiler.engine.json_body import MAX_BODY_BYTES
from profiler.replay import Faults, running_replay
from tests.case_files import case_folder
from tests.profiler.replay.traces import made_up

KEY_CASES = json.loads((case_folder("S01") / "cases.json").read_text())

ADMIN_ROUTES = [
    ("GET", "/start_expert_distribution_record"),
    ("POST", "/stop_expert_distribution_record"),
    ("GET", "/moeplan/health"),
    ("GET", "/moeplan/placement"),
    ("PUT", "/moeplan/placement"),
    ("POST", "/moeplan/demand/start"),
    ("POST", "/moeplan/demand/stop"),
    ("GET", "/moeplan/demand"),
    ("GET", "/moeplan/measured"),
    ("GET", "/moeplan/replay/pushes"),
    ("POST", "/moeplan/replay/steps"),
]


@contextmanager
def http_of(**options) -> Iterator[httpx.Client]:
    options = {"gpus": 2, "slots_per_gpu": 5, "steps_per_s": 0, **options}
    serving = running_replay(made_up([(6, 2)] * 3), **options)
    with serving as url, httpx.Client(base_url=url, trust_env=False, timeout=20) as http:
        yield http


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with http_of() as client:
        yield client


# ------------------------------------------------------------------ access (case S01)


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("keys", KEY_CASES, ids=str)
def test_admin_routes_take_the_key_that_sglang_would_take(keys):
    with http_of(api_key=keys["api_key"], admin_key=keys["admin_key"]) as http:
        for method, path in ADMIN_ROUTES:
            status = http.request(method, path, headers=bearer(keys["sent"])).status_code
            assert (status != 401) == keys["allowed"], (method, path)


@pytest.mark.parametrize(
    ("api_key", "admin_key", "sent", "admin_allowed", "read_allowed"),
    [
        (None, None, "anything", True, True),
        ("k", None, None, False, False),
        ("k", None, "wrong", False, False),
        (None, "a", None, False, True),
        (None, "a", "a", True, True),
        ("k", "a", "k", False, True),
        ("k", "a", "a", True, False),
        ("k", "a", "ä", False, False),
    ],
)
def test_both_levels_of_access_for_every_pair_of_keys(api_key, admin_key, sent, admin_allowed, read_allowed):
    headers = {} if sent is None else {"Authorization": f"Bearer {sent}".encode()}
    with http_of(api_key=api_key, admin_key=admin_key) as http:
        assert (http.get("/moeplan/health", headers=headers).status_code == 200) == admin_allowed
        for path in ("/server_info", "/get_server_info"):
            assert (http.get(path, headers=headers).status_code == 200) == read_allowed
        assert http.get("/health").status_code == 200


def test_a_refused_request_says_so_in_sglangs_words_and_without_the_key():
    with http_of(admin_key="the-secret") as http:
        answer = http.get("/moeplan/placement", headers=bearer("guess"))
    assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})


def test_another_scheme_than_bearer_is_no_key():
    with http_of(admin_key="a") as http:
        assert http.get("/moeplan/health", headers={"Authorization": "Basic a"}).status_code == 401
        assert http.get("/moeplan/health", headers={"Authorization": "bearer a"}).status_code == 200


# ------------------------------------------------------------------ SGLang's own routes


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("verb", "line"),
    [("start", "Start recording the expert distribution.\n"), ("stop", "Stop recording the expert distribution.\n")],
)
def test_recorder_routes_answer_one_line_of_text(http, method, verb, line):
    answer = http.request(method, f"/{verb}_expert_distribution_record")
    assert (answer.status_code, answer.text) == (200, line)
    assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("verb", ["start", "stop", "dump"])
def test_an_engine_without_a_recorder_names_the_flag(verb):
    with http_of(recorder=False) as http:
        answer = http.post(f"/{verb}_expert_distribution_record")
        assert http.get("/server_info").json()["expert_distribution_recorder_mode"] is None
    assert answer.status_code == 400
    assert "--expert-distribution-recorder-mode" in answer.text


def test_server_info_holds_what_bears_on_experts_and_says_that_it_is_a_replay(http):
    info = http.get("/server_info").json()
    expected = {
        "engine": "moeplan-replay",
        "simulated": True,
        "ep_size": 2,
        "nnodes": 1,
        "ep_dispatch_algorithm": "dynamic",
        "moe_a2a_backend": "deepep",
        "ep_num_redundant_experts": 2,
        "expert_distribution_recorder_mode": "stat",
    }
    assert expected.items() <= info.items()
    assert http.get("/get_server_info").json()["version"] == info["version"]


@pytest.mark.parametrize("path", ["/moeplan/health", "/moeplan/placement", "/moeplan/demand", "/moeplan/measured"])
def test_every_answer_says_that_it_is_a_replay(http, path):
    message = http.get(path).json()
    assert (message["engine"], message["simulated"]) == ("moeplan-replay", True)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"not json", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "nests deeper"),
        (b"[]", "JSON object"),
        (b"{}", "physical_to_logical_map"),
        (b'{"physical_to_logical_map": [], "x": 1}', "list of layers"),
    ],
)
def test_a_body_that_is_no_push_is_refused_with_a_sentence(http, body, words):
    answer = http.put("/moeplan/placement", content=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["detail"]


def test_a_body_beyond_the_limit_is_refused(http):
    answer = http.put("/moeplan/placement", content=b" " * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 400
    assert "larger than" in answer.json()["error"]["detail"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "either window_steps or window_seconds"),
        ({"window_steps": 1, "window_seconds": 1.0}, "not both"),
        ({"window_steps": 0}, "at least 1"),
        ({"window_steps": 1.5}, "whole number"),
        ({"window_steps": True}, "whole number"),
        ({"window_seconds": 0}, "above 0"),
        ({"window_seconds": "1"}, "finite number"),
        ({"window_steps": 1, "ring_windows": MAX_RING_WINDOWS + 1}, "at most"),
        ({"window_steps": 1, "max_steps": -1}, "at least 1"),
    ],
)
def test_bad_options_of_a_recording_are_refused(http, body, words):
    answer = http.post("/moeplan/demand/start", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["detail"]


def test_a_ring_that_would_fill_the_memory_is_refused():
    trace = made_up([(1, 0)], layers=64, experts=512)
    with running_replay(trace, gpus=8, slots_per_gpu=64, steps_per_s=0) as url:
        answer = httpx.post(
            f"{url}/moeplan/demand/start", json={"window_steps": 1, "ring_windows": 4096}, trust_env=False
        )
    assert answer.status_code == 400
    assert "can be kept" in answer.json()["error"]["detail"]


@pytest.mark.parametrize("query", ["max_windows=0", "max_windows=5000", "max_windows=x"])
def test_an_impossible_number_of_windows_is_refused(http, query):
    assert 400 <= http.get(f"/moeplan/demand?{query}").status_code < 500


def test_an_unknown_route_is_not_found(http):
    assert http.get("/moeplan/nothing").status_code == 404


def test_latency_delays_every_answer():
    with http_of(faults=Faults(latency_s=0.3)) as http:
        started_s = time.monotonic()
        http.get("/health")
        assert time.monotonic() - started_s >= 0.3


# ------------------------------------------------------------------ the clock


def test_the_same_seed_dispatches_the_same_and_another_seed_differs():
    def counts(seed: int) -> np.ndarray:
        with http_of(seed=seed, passes=1, slots_per_gpu=2, gpus=8, nodes=4) as http:
            http.post("/moeplan/replay/steps", json={"steps": 1000})
            return np.array(http.get("/moeplan/measured").json()["load_LG"])

    np.testing.assert_array_equal(counts(1), counts(1))
    assert (counts(1) != counts(2)).any()


def test_a_running_clock_goes_round_and_round():
    with http_of(steps_per_s=None) as http:
        deadline = time.monotonic() + 20
        while (tokens := http.get("/moeplan/measured").json()["tokens"]) <= 100 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert tokens > 100  # the trace has 24


def test_a_clock_with_a_pace_keeps_it():
    with http_of(steps_per_s=50) as http:
        first, started_s = http.get("/server_info").json()["replay"]["steps"], time.monotonic()
        time.sleep(0.5)
        steps, elapsed_s = http.get("/server_info").json()["replay"]["steps"] - first, time.monotonic() - started_s
    assert 1 <= steps <= 50 * elapsed_s + 2


def test_steps_are_run_on_demand_up_to_the_end_of_the_trace():
    with http_of(passes=1) as http:
        one = http.post("/moeplan/replay/steps", json={"steps": 1}).json()
        rest = http.post("/moeplan/replay/steps", json={"steps": 1000}).json()
        too_many = http.post("/moeplan/replay/steps", json={"steps": 10**9})
    assert one == {"steps_served": 1, "at_end": False}
    assert rest["at_end"]
    assert too_many.status_code == 400
