"""What clients see of an engine under load, and what is made of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.gpu.front_end import busiest, front_end_seconds
from tests.gpu.load import Load, loading
from tests.gpu.load_metrics import LoadTimes, RequestTimes, Window, busiest_client, served, spread
from tests.gpu.machine import cpu_machine
from tests.gpu.traffic import Traffic

WINDOW = Window(since_s=9.0, start_s=10.0, end_s=12.0)


def _request(
    start_s: float, events: Sequence[tuple[float, int]], *, prompt: int = 100, wanted: int = 0
) -> RequestTimes:
    at_s, tokens = (np.array(column) for column in zip(*events, strict=True)) if events else (np.zeros(0), np.zeros(0))
    return RequestTimes(start_s, prompt, wanted or (events[-1][1] if events else 1), at_s, tokens.astype(np.int64))


def test_of_long_requests_a_window_counts_what_arrived_in_it() -> None:
    across = _request(8.0, [(9.5, 1), (10.5, 9), (11.5, 17), (12.5, 25)])
    inside = _request(9.5, [(10.25, 1), (10.75, 5), (12.25, 9)])
    found = served([across, inside], WINDOW)
    assert found.rates_by == "arrivals"
    assert found.output_tokens_per_s == (16 + 5) / 2.0
    assert found.input_tokens_per_s == 100 / 2.0


def test_short_requests_count_by_their_part_in_the_window_however_waves_fall() -> None:
    """Waves of 0.8 s in which 10 requests get their tokens at once are 12.5 requests a second in every window."""
    waves = [
        _request(0.8 * wave, [(0.8 * wave + 0.5, 1), (0.8 * wave + 0.8, 16)], wanted=16)
        for wave in range(40)
        for _ in range(10)
    ]
    for start_s in (10.0, 10.3, 10.45, 10.7):
        found = served(waves, Window(start_s - 1, start_s, start_s + 2.0))
        assert found.rates_by == "requests"
        assert found.output_tokens_per_s == pytest.approx(16 * 12.5)
        assert found.input_tokens_per_s == pytest.approx(100 * 12.5)


def test_failed_requests_add_nothing_to_a_rate() -> None:
    cut = _request(10.0, [(10.5, 1), (11.0, 9)], wanted=17)
    assert served([cut], WINDOW).output_tokens_per_s == 0.0


def test_only_requests_sent_under_the_layout_tell_a_time_to_first_token() -> None:
    before, after = _request(8.5, [(10.5, 1), (11.0, 9)]), _request(9.5, [(10.25, 1), (11.2, 4)])
    found = served([before, after], WINDOW)
    assert found.first_token_s is not None
    assert found.first_token_s.count == 1
    assert found.first_token_s.median == pytest.approx(0.75)
    assert found.input_tokens_per_s == 100.0, "its prompt was computed in the window nevertheless"


def test_time_per_output_token_is_between_events_of_the_window() -> None:
    found = served([_request(8.0, [(9.0, 1), (10.0, 9), (11.6, 25), (12.4, 33)])], WINDOW)
    assert found.token_s is not None
    assert found.token_s.median == pytest.approx(0.1)
    assert served([_request(8.0, [(11.0, 1)])], WINDOW).token_s is None


def test_an_empty_window_has_no_times() -> None:
    found = served([_request(1.0, [(2.0, 1)]), _request(11.0, [])], WINDOW)
    assert (found.output_tokens_per_s, found.first_token_s, found.token_s) == (0.0, None, None)


def test_the_99th_percentile_is_a_value_that_was_seen() -> None:
    values = [float(number) for number in range(1, 201)]
    found = spread(values)
    assert found is not None
    assert (found.median, found.p99) == (100.5, 198.0)
    assert spread([3.0]) is not None
    assert spread([]) is None


def test_a_request_cut_short_failed() -> None:
    requests = [_request(1.0, [(2.0, 3)], wanted=3), _request(1.0, [(2.0, 2)], wanted=3), _request(1.0, [])]
    assert LoadTimes(requests).failed == 2
    assert LoadTimes(requests, lost_processes=1).failed == 3


def test_the_busiest_client_is_told_for_the_window_alone() -> None:
    at_s = np.array([0.0, 10.0, 12.0, 20.0])
    idle, busy = np.array([0.0, 9.0, 9.2, 17.0]), np.array([0.0, 1.0, 2.8, 3.0])
    assert busiest_client(LoadTimes(client_cpu=[(at_s, idle), (at_s, busy)]), WINDOW) == pytest.approx(0.9)
    assert busiest_client(LoadTimes(), WINDOW) == 0.0


def test_the_front_end_is_the_first_process_and_its_children_but_those_of_gpus(tmp_path: Path) -> None:
    def process(pid: int, name: str, parent: int, ticks: int) -> None:
        (tmp_path / str(pid)).mkdir()
        rest = ["S", str(parent), *["0"] * 9, str(ticks), str(ticks), "0"]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name[:15]}) {' '.join(rest)}\n")
        (tmp_path / str(pid) / "cmdline").write_text(f"{name}\0")

    process(7, "python3", 1, 50)
    process(8, "sglang::detokenizer", 7, 100)
    process(9, "sglang::scheduler_TP0", 7, 500)
    process(11, "sglang::data_parallel_controller", 7, 500)
    process(10, "a (b) c", 8, 500)
    (tmp_path / "meminfo").write_text("")
    found = front_end_seconds(7, processes=tmp_path)
    assert found == pytest.approx({"python3 7": 1.0, "sglang::detoken 8": 2.0})
    later = {"python3 7": 2.0, "sglang::detoken 8": 3.8, "new 11": 9.0}
    name, share = busiest(found, later, length_s=2.0)
    assert name == "sglang::detoken 8"
    assert share == pytest.approx(0.9)
    assert busiest({}, later, length_s=2.0) == ("", 0.0)


class _Streamer(BaseHTTPRequestHandler):
    """Sends an event for the first token, then one for so many as were asked for at a time."""

    homes: ClassVar[list[int]] = []
    wanted: ClassVar[list[int]] = []
    refuse_after = 10**6

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sampling = body["sampling_params"]
        self.homes.append(body["routed_dp_rank"])
        self.wanted.append(sampling["max_new_tokens"])
        self.send_response(200)
        self.end_headers()
        if len(self.wanted) > self.refuse_after:
            self.wfile.write(b'data: {"error": "full"}\n\n')
            return
        steps = range(1, sampling["max_new_tokens"], sampling["stream_interval"])
        for tokens in [*steps, sampling["max_new_tokens"]]:
            event = json.dumps({"output_ids": [1], "meta_info": {"completion_tokens": tokens}})
            self.wfile.write(f"data: {event}\n\n".encode())
            time.sleep(0.005)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def _streaming_engine(refuse_after: int = 10**6) -> Iterator[Any]:
    handler = type("Handler", (_Streamer,), {"homes": [], "wanted": [], "refuse_after": refuse_after})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield SimpleNamespace(url=url, sources=2, requests=0, failed=0, failures=[], handler=handler)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_clients_keep_requests_in_flight_and_tell_when_tokens_came(tmp_path: Path) -> None:
    traffic = Traffic(([[1] * 5], [[2] * 5, [3] * 5]), new_tokens=17, temperature=1.0)
    with _streaming_engine() as engine:
        with loading(cpu_machine(tmp_path, tmp_path), engine, Load(traffic, streams=4, tokens_per_event=8)) as times:
            start_s = time.monotonic()
            while len(engine.handler.wanted) < 12:
                time.sleep(0.01)
            window = Window(start_s, start_s, time.monotonic())
        asked, homes = engine.handler.wanted, engine.handler.homes
    assert (engine.failed, engine.requests) == (0, len(asked)) == (0, len(times.requests))
    assert set(homes) == {0, 1}
    assert sorted(request.wanted for request in times.requests) == sorted(asked)
    assert sum(wanted == 17 for wanted in asked) >= len(asked) - 4, "only the first of each stream is cut"
    whole = [request.tokens.tolist() for request in times.requests if request.wanted == 17]
    assert whole
    assert all(tokens == [1, 9, 17] for tokens in whole)
    assert all(request.start_s <= request.first_token_s <= request.last_token_s for request in times.requests)
    assert served(times.requests, window).output_tokens_per_s > 0
    assert len(times.client_cpu) == 1
    assert 0 <= busiest_client(times, window) < 2


def test_an_engine_that_refuses_is_a_failure_with_its_words(tmp_path: Path) -> None:
    traffic = Traffic(([[1]], [[2]]), new_tokens=2)
    load = Load(traffic, streams=2, tokens_per_event=8)
    with _streaming_engine(refuse_after=0) as engine, loading(cpu_machine(tmp_path, tmp_path), engine, load) as times:
        while len(engine.handler.wanted) < 2:
            time.sleep(0.01)
    assert engine.failed == len(times.requests) >= 2
    assert "full" in engine.failures[0]
