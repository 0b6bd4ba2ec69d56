"""The client: every kind of bad answer ends in one sentence, in time, without the key."""

from __future__ import annotations

import json
import logging
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from placement.errors import BadOption
from profiler.engine import http as engine_http
from profiler.engine import time_limits
from profiler.engine.client import EngineClient
from profiler.engine.contract_demand import DemandOptions
from profiler.engine.contract_push import PushRequest
from profiler.errors import (
    DispatchNotSet,
    EngineAnswerInvalid,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineRefused,
    EngineUnreachable,
    LayoutHashMismatch,
    ModelWithoutExpertLocation,
    PluginMissing,
    RecorderDisabled,
)
from profiler.json_file import read_json
from profiler.plugin.carrier import ANSWER_TIMEOUT_S, HEALTH_TIMEOUT_S
from profiler.replay import running_replay
from tests.case_files import case, case_folder
from tests.profiler.engine.messages import MAP_LP, MESSAGES, health
from tests.profiler.engine.servers import answer, engine_that_answers, hangs_up, healthy_routes, in_turn
from tests.profiler.replay.clients import client_of_replay
from tests.profiler.replay.traces import made_up

KEY = "very-secret-key"
HEALTH = ("GET", "/moeplan/health")


@contextmanager
def client_of(routes: dict) -> Iterator[EngineClient]:
    with engine_that_answers(routes) as (url, _), EngineClient(url) as client:
        yield client


def error_of(handler, *, timeout_s: float = 5.0) -> EngineError:
    with (
        engine_that_answers({HEALTH: handler}) as (url, _),
        EngineClient(url, KEY, timeout_s=timeout_s) as client,
        pytest.raises(EngineError) as caught,
    ):
        client.health()
    text = "".join(traceback.format_exception(caught.value))
    assert KEY not in text
    assert caught.value.detail.endswith(".")
    assert "\n" not in caught.value.detail
    return caught.value


# ------------------------------------------------------------------ answers that are none


@pytest.mark.parametrize(
    ("handler", "error", "words"),
    [
        (answer(raw=b"<html>"), EngineAnswerInvalid, "not JSON"),
        (answer(raw=b""), EngineAnswerInvalid, "not JSON"),
        (answer(raw=b"[" * 200_000), EngineAnswerInvalid, "not JSON"),
        (answer(raw=b"\xff\xfe{"), EngineAnswerInvalid, "not JSON"),
        (answer([]), EngineAnswerInvalid, "JSON object"),
        (answer({}), EngineAnswerInvalid, "has no field"),
        (answer({**health().to_json(), "contract": 2}), EngineAnswerInvalid, "version 2 of the contract"),
        (answer({**health().to_json(), "ranks": "all"}), EngineAnswerInvalid, "health.ranks"),
        (answer(raw=b"x", content_encoding="gzip"), EngineAnswerInvalid, "compressed"),
        (answer({"error": {"code": "A_CODE", "detail": "no way."}}, status=400), EngineRefused, "A_CODE: no way"),
        (answer({"detail": [{"loc": 1}]}, status=422), EngineRefused, "loc"),
        (answer(raw=b"", status=400), EngineRefused, "no reason was given"),
        (answer({"error": "Unauthorized"}, status=401), EngineRefused, "admin key"),
        (answer({"error": "Forbidden"}, status=403), EngineRefused, "admin key"),
        (answer({"error": {"code": "RANKS_DO_NOT_ANSWER", "detail": "d."}}, status=503), EngineFailed, "RANKS_DO"),
        (answer(raw=b"Internal Server Error", status=500), EngineFailed, "Internal Server Error"),
        (answer(status=302, location="http://127.0.0.1:9/steal"), EngineRefused, "302"),
        (answer({}, status=404), PluginMissing, "pip install --no-deps moeplan"),
    ],
)
def test_an_answer_that_is_none_ends_in_a_sentence(handler, error, words):
    caught = error_of(handler)
    assert type(caught) is error
    assert words in caught.detail


def test_an_answer_that_repeats_the_key_does_not_put_it_into_our_message():
    for handler in (
        answer({"error": {"code": "BAD_KEY", "detail": f"{KEY} is not it."}}, status=400),
        answer(raw=f"no json but {KEY}".encode()),
        answer({**health().to_json(), "ranks": KEY}),
        answer({"error": {"code": KEY, "detail": "x"}}, status=500),
    ):
        error_of(handler)


def test_a_huge_answer_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(engine_http, "MAX_ANSWER_BYTES", 1000)
    assert "larger than 1000 bytes" in error_of(answer(raw=b" " * 5000)).detail


def test_a_silent_engine_is_given_up_in_time():
    def silent(request):
        time.sleep(1.5)

    started_s = time.monotonic()
    assert "within 0.3 s" in error_of(silent, timeout_s=0.3).detail
    assert time.monotonic() - started_s < 1.5


# ------------------------------------------------------------------ how long, and how often


READS = [
    (lambda client: client.require_alive(), ("GET", "/health"), time_limits.HEALTH_S),
    (lambda client: client.architectures(), ("GET", "/model_info"), time_limits.HTTP_S),
    (lambda client: client.server_info(), ("GET", "/server_info"), time_limits.RANKS_S),
    (lambda client: client.health(), HEALTH, time_limits.HEALTH_S),
    (lambda client: client.placement(), ("GET", "/moeplan/placement"), time_limits.RANKS_S),
    (lambda client: client.placement(checksums=True), ("GET", "/moeplan/placement"), time_limits.CHECKSUMS_S),
]
TAKES = [
    (lambda client: client.demand(), ("GET", "/moeplan/demand"), time_limits.RANKS_S),
    (lambda client: client.stop_demand(), ("POST", "/moeplan/demand/stop"), time_limits.RANKS_S),
    (lambda client: client.start_demand(DemandOptions(window_steps=1)), ("POST", "/moeplan/demand/start"), 75.0),
    (lambda client: client.put_placement(PushRequest(map_LP=MAP_LP)), ("PUT", "/moeplan/placement"), 600.0),
]


@pytest.mark.parametrize(("ask", "route", "limit_s"), READS + TAKES)
def test_every_question_has_its_own_limit_unless_one_is_given(ask, route, limit_s, monkeypatch):
    limits = []

    def asked(_http, method, path, *, timeout_s=None, **_):
        limits.append(((method, path), timeout_s))
        return engine_http.Answer(404, b"")

    monkeypatch.setattr(engine_http.EngineHttp, "request", asked)
    for given_s in (None, 3.0):
        with EngineClient("http://127.0.0.1:9", timeout_s=given_s) as client, suppress(EngineError):
            ask(client)
    assert limits[0] == (route, limit_s)
    given = [limit for found, limit in limits if found == route][-1]
    assert given == (600.0 if route[0] == "PUT" else 3.0)


def test_limits_wait_for_what_the_engine_says_at_its_own():
    assert time_limits.HEALTH_S > HEALTH_TIMEOUT_S
    assert time_limits.RANKS_S > ANSWER_TIMEOUT_S


@pytest.mark.parametrize(("ask", "route", "_limit_s"), READS)
def test_a_connection_that_is_lost_is_no_answer_when_only_reading(ask, route, _limit_s):
    routes = healthy_routes()
    usual = routes.get(route, answer({"architectures": []}))
    with engine_that_answers({**routes, route: in_turn(hangs_up, usual)}) as (url, told), EngineClient(url) as client:
        ask(client)
    assert told.requests.count(route) == 2


@pytest.mark.parametrize(("ask", "route", "_limit_s"), TAKES)
def test_what_takes_or_changes_something_is_asked_for_once(ask, route, _limit_s):
    routes = {route: in_turn(hangs_up, answer({}))}
    with engine_that_answers(routes) as (url, told), EngineClient(url) as client, pytest.raises(EngineError):
        ask(client)
    assert told.requests.count(route) == 1


@pytest.mark.parametrize("url", ["http://xn--/", f"http://{'a' * 64}.example", "http://127.0.0.1:99999", "http://h:0"])
def test_hosts_and_ports_that_cannot_be_are_refused(url):
    with pytest.raises(BadOption, match="http://127"):
        EngineClient(url)


def test_an_answer_whose_headers_drip_is_given_up_although_every_one_comes_in_time():
    def dripping(request):
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(100):
            request.wfile.write(b"x-%d: 1\r\n" % number)
            time.sleep(0.1)

    started_s = time.monotonic()
    assert "within 0.4 s" in error_of(dripping, timeout_s=0.4).detail
    assert time.monotonic() - started_s < 2.5


def test_a_body_without_a_length_that_is_cut_is_not_taken_for_whole():
    def dripping(request):
        request.send_response(200)
        request.send_header("connection", "close")
        request.end_headers()
        request.wfile.write(b"{}")
        request.wfile.flush()
        time.sleep(1.0)
        request.close_connection = True

    assert "within 0.4 s" in error_of(dripping, timeout_s=0.4).detail


def test_an_answer_that_drips_is_given_up_although_every_byte_comes_in_time():
    def dripping(request):
        request.send_response(200)
        request.send_header("content-length", "1000")
        request.end_headers()
        for _ in range(60):
            request.wfile.write(b" ")
            request.wfile.flush()
            time.sleep(0.05)

    started_s = time.monotonic()
    assert "within 0.4 s" in error_of(dripping, timeout_s=0.4).detail
    assert time.monotonic() - started_s < 2.5


def test_an_answer_that_breaks_off_or_is_no_http():
    def broken(request):
        request.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort")
        request.close_connection = True

    def no_http(request):
        request.wfile.write(b"SSH-2.0-OpenSSH\r\n")
        request.close_connection = True

    broke_off = error_of(broken)
    assert type(broke_off) is EngineUnreachable
    assert "closed the connection before its answer was whole" in broke_off.detail
    assert type(error_of(no_http)) is EngineAnswerInvalid


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with EngineClient(f"http://127.0.0.1:{port}", KEY) as client:
        for ask in (client.health, client.require_alive, client.server_info):
            with pytest.raises(EngineUnreachable, match="cannot be reached"):
                ask()
        with pytest.raises(EngineUnreachable):
            client.wait_alive(limit_s=0.3, poll_s=0.05)


def test_an_engine_that_does_not_serve_says_so():
    routes = {("GET", "/health"): answer({}, status=503)}
    with client_of(routes) as client, pytest.raises(EngineUnreachable, match="503"):
        client.require_alive()


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("LAYOUT_HASH_MISMATCH", 409, LayoutHashMismatch),
        ("PUSH_IN_PROGRESS", 409, EngineBusy),
        ("RECORDING_IN_PROGRESS", 409, EngineBusy),
        ("DISPATCH_NOT_SET", 400, DispatchNotSet),
        ("EXPERT_MISSING", 400, EngineRefused),
        ("ENGINE_FAILED", 500, EngineFailed),
    ],
)
def test_a_refused_push_has_the_error_of_its_code(code, status, error):
    routes = {("PUT", "/moeplan/placement"): answer({"error": {"code": code, "detail": "d."}}, status=status)}
    with client_of(routes) as client, pytest.raises(error) as caught:
        client.put_placement(PushRequest(np.array([[0]], dtype=np.int32)))
    assert type(caught.value) is error
    assert f"{caught.value.code}: {caught.value.detail}".count(code) == 1


def test_a_refusal_says_what_still_works():
    refused = {"error": {"code": "MODEL_WITHOUT_EXPERT_LOCATION", "detail": "Mixtral has no expert location."}}
    routes = {("GET", "/moeplan/placement"): answer(refused, status=400)}
    with client_of(routes) as client, pytest.raises(ModelWithoutExpertLocation, match="Mixtral") as caught:
        client.placement()
    assert "moeplan sample" in "".join(caught.value.remedies)


def test_a_partial_push_is_an_answer_and_no_error():
    routes = {("PUT", "/moeplan/placement"): answer(MESSAGES["push answer"].to_json(), status=500)}
    with engine_that_answers(routes) as (url, _), EngineClient(url) as client:
        assert client.put_placement(PushRequest(np.array([[0]], dtype=np.int32))).status == "partial"


# ------------------------------------------------------------------ the key


def test_the_key_is_sent_as_bearer_and_shown_nowhere(caplog):
    caplog.set_level(logging.DEBUG)
    with engine_that_answers(healthy_routes()) as (url, told), EngineClient(url, KEY) as client:
        client.health()
        client.placement()
        assert KEY not in repr(client)
        assert KEY not in str(vars(client.health()))
    assert {headers.get("authorization") for headers in told.headers} == {f"Bearer {KEY}"}
    assert KEY not in caplog.text


def test_an_engine_with_both_keys_is_read_with_the_one_and_changed_with_the_other():
    with running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=4, api_key="read-it", admin_key="change-it") as url:
        with EngineClient(url, "change-it", read_key="read-it") as client:
            assert client.server_info()["ep_size"] == 2
            client.start_record()
            client.stop_record()
            assert client.health().simulated
        with EngineClient(url, "change-it") as client, pytest.raises(EngineRefused, match="another key"):
            client.server_info()


@pytest.mark.parametrize("key", ["", " xyz", "xyz ", "xyz\nb", "xyzä", "xyz\x00"])
def test_a_key_that_no_header_can_hold_is_refused_without_repeating_it(key):
    with pytest.raises(BadOption) as caught:
        EngineClient("http://127.0.0.1:1", key)
    assert "xyz" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:30000",
        "ftp://host",
        "http://",
        "http://host:notaport",
        "http://host/?q=1",
        "http://[::1",
        "file:///x",
    ],
)
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(BadOption, match="URL"):
        EngineClient(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@127.0.0.1:30000",
        "user:hunter2@127.0.0.1:30000",
        "http://127.0.0.1:30000/?key=hunter2",
        "http://127.0.0.1:30000/#hunter2",
    ],
)
def test_a_secret_in_the_url_is_refused_without_repeating_it(url):
    with pytest.raises(BadOption) as caught:
        EngineClient(url)
    assert "hunter2" not in str(caught.value)


def test_a_redirect_is_not_followed():
    routes = {HEALTH: answer(status=307, location="/moeplan/placement")}
    with engine_that_answers(routes) as (url, told), EngineClient(url, KEY) as client, pytest.raises(EngineRefused):
        client.health()
    assert told.requests == [HEALTH]


def test_proxies_of_the_environment_are_not_asked(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with engine_that_answers(healthy_routes()) as (url, _), EngineClient(url, KEY) as client:
        assert client.health().engine == "sglang"


@pytest.mark.parametrize(("admin_key", "codes"), [(None, ["ENGINE_UNPROTECTED"]), ("a-key", [])])
def test_an_engine_without_a_key_is_pointed_out(admin_key, codes):
    assert case("S01")["expect"]["error_code"] == "ENGINE_UNPROTECTED"
    serving = running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=4, admin_key=admin_key)
    with serving as url, EngineClient(url, "a-key") as client:
        assert [notice.code for notice in client.protection_notices()] == codes


# ------------------------------------------------------------------ SGLang's own recorder (cases P35, P37)


def test_a_recorder_that_is_off_is_not_even_asked():
    info = read_json(case_folder("P35") / "server_info.json")
    with (
        engine_that_answers({("GET", "/server_info"): answer(info)}) as (url, told),
        EngineClient(url) as client,
        pytest.raises(RecorderDisabled, match="--expert-distribution-recorder-mode stat") as caught,
    ):
        client.start_record()
    assert caught.value.code == case("P35")["expect"]["error_code"]
    assert told.requests == [("GET", "/server_info")]


def test_the_older_name_of_server_info_is_known():
    routes = {("GET", "/get_server_info"): answer({"ep_size": 8})}
    with engine_that_answers(routes) as (url, _), EngineClient(url) as client:
        assert client.server_info() == {"ep_size": 8}


def test_a_second_job_cannot_start_recording_over_the_first():
    scenario = read_json(case_folder("P37") / "scenario.json")
    starts = [step["job"] for step in scenario["steps"] if step["call"] == "start"]
    with client_of_replay(made_up([(4, 2)]), gpus=2, slots_per_gpu=4, steps_per_s=0) as client:
        client.start_demand(DemandOptions(window_steps=1))
        client.run_steps(2)
        for _ in starts[1:]:
            with pytest.raises(EngineBusy) as caught:
                client.start_demand(DemandOptions(window_steps=1))
            assert caught.value.code == case("P37")["expect"]["error_code"]
        client.stop_demand()
        assert client.demand().steps == 2


def test_a_healthy_engine_is_read_as_it_is():
    with engine_that_answers(healthy_routes()) as (url, _), EngineClient(f"{url}/") as client:
        client.require_alive()
        client.wait_alive(limit_s=1)
        assert client.url == url
        assert client.placement(checksums=True).checksums["w"][0] == ("a", "b", "c", "a")
        assert json.dumps(client.health().to_json())
