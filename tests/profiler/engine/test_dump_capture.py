"""Recording with SGLang's own recorder: on the replay engine, and on engines that behave as a test says."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placement.errors import BadOption, EmptyProfile
from profiler.engine import dump_capture
from profiler.engine.client import EngineClient
from profiler.engine.dump_capture import DumpCapture, capture_dumps
from profiler.errors import (
    DumpNotFound,
    EngineBusy,
    EngineFailed,
    EngineLostDuringDump,
    EngineRefused,
    RecorderDisabled,
    RecordingNeedsLimit,
)
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.replay import running_replay
from profiler.writers.parquet import import_trace
from profiler.writers.sglang_dump import rank_file_name, stat_file_name, write_per_pass, write_per_token, write_stat
from tests.case_files import case, case_json
from tests.profiler.engine.server_infos import server_info
from tests.profiler.engine.servers import Handler, Told, answer, engine_that_answers, hangs_up
from tests.profiler.readers.sglang_files import count, popularity, prefill, rng, route
from tests.profiler.replay.traces import made_up

START, STOP, DUMP = (f"/{verb}_expert_distribution_record" for verb in ("start", "stop", "dump"))
SHORT_S = 0.05
FILES_S = 1.5


def writes(write: Callable[[float], object]) -> Handler:
    """Return a handler of the dump route that writes files first."""

    def handle(request: BaseHTTPRequestHandler) -> None:
        write(time.time())
        answer(raw=b"Dump expert distribution record.\n")(request)

    return handle


def stat_dump(folder: Path, *, steps: int = 2, ring: int = 4) -> Handler:
    counts_NLE = np.zeros((ring, 3, 4), dtype=np.int32)
    counts_NLE[:steps] = 5
    return writes(lambda now_s: write_stat(folder / stat_file_name(now_s), counts_NLE))


def engine(folder: Path, *, dump: Handler | None = None, **changes: Any) -> dict[tuple[str, str], Handler]:
    ok = answer(raw=b"done\n")
    return {
        ("GET", "/health"): answer({}),
        ("GET", "/server_info"): answer(server_info(**changes)),
        ("POST", START): ok,
        ("POST", STOP): ok,
        ("POST", DUMP): stat_dump(folder) if dump is None else dump,
    }


def captured(folder: Path, routes: dict[tuple[str, str], Handler], **options: Any) -> tuple[DumpCapture, Told]:
    options = {"seconds": SHORT_S, "files_limit_s": FILES_S, **options}
    with engine_that_answers(routes) as (url, told), EngineClient(url) as client:
        return capture_dumps(client, folder, **options), told


def refused(
    folder: Path, error: type[Exception], words: str, routes: dict[tuple[str, str], Handler], **options: Any
) -> Told:
    options = {"seconds": SHORT_S, "files_limit_s": FILES_S, **options}
    with engine_that_answers(routes) as (url, told), EngineClient(url) as client, pytest.raises(error, match=words):
        capture_dumps(client, folder, **options)
    return told


def posts(told: Told) -> list[str]:
    return [path for method, path in told.requests if method == "POST"]


# ------------------------------------------------------------------ what is recorded


def test_the_replay_engine_is_recorded_by_its_stock_routes(tmp_path: Path) -> None:
    serving = running_replay(made_up([(6, 6)] * 4), gpus=2, slots_per_gpu=5, steps_per_s=100, dump_dir=tmp_path)
    with serving as url, EngineClient(url) as client:
        recorded = capture_dumps(client, tmp_path, seconds=0.5)
        again = capture_dumps(client, tmp_path, seconds=0.2)
    header = recorded.header
    assert (header.layers, header.experts, header.engine, header.engine_version) == (4, 8, "moeplan-replay", "0.5.23")
    assert recorded.files != again.files
    assert recorded.notices == ()
    out = tmp_path / "trace.parquet"
    import_trace([recorded], out)
    (reader,) = open_inputs([out], ReadOptions())
    assert reader.header.engine_version == "0.5.23"
    mine = sum(chunk.tokens_LSE.sum() for chunk in recorded.chunks())
    assert mine == sum(chunk.tokens_LSE.sum() for chunk in reader.chunks()) > 0


def test_start_stop_and_dump_are_asked_once_and_in_this_order(tmp_path: Path) -> None:
    recorded, told = captured(tmp_path, engine(tmp_path))
    assert posts(told) == [START, STOP, DUMP]
    assert sum(chunk.tokens_LSE.sum() for chunk in recorded.chunks()) == 2 * 3 * 4 * 5
    assert [path.parent for path in recorded.files] == [tmp_path]
    assert [path.name for path in tmp_path.iterdir()] == [recorded.files[0].name], "no lease is left behind"


def test_a_recorder_that_runs_for_metrics_is_left_running(tmp_path: Path) -> None:
    for switch in ({"expert_balancedness_report_mode": "prometheus"}, {"enable_expert_distribution_metrics": True}):
        _, told = captured(tmp_path, engine(tmp_path, **switch))
        assert posts(told) == [START, DUMP]


@pytest.mark.parametrize("mode", ["per_pass", "per_token"])
def test_files_of_all_ranks_become_one_trace(tmp_path: Path, mode: str) -> None:
    map_LP, random = np.tile(np.arange(16), (3, 1)), rng()
    shares_LE = popularity(random, layers=3, experts=16)

    def write(now_s: float) -> None:
        for rank in range(2):
            path = tmp_path / rank_file_name(now_s + rank / 100, rank)
            ids_LTK = route(random, shares_LE, tokens=80, top_k=4)
            if mode == "per_pass":
                write_per_pass(path, [(0, count(ids_LTK, 16))], map_LP, rank=rank)
            else:
                write_per_token(path, [prefill(0, ids_LTK)], map_LP, rank=rank)

    routes = engine(tmp_path, dump=writes(write), expert_distribution_recorder_mode=mode)
    recorded, _ = captured(tmp_path, routes)
    assert len(recorded.files) == 2
    assert recorded.header.kind == ("counts" if mode == "per_pass" else "tokens")
    assert recorded.header.source_ranks == 2


def test_a_ring_that_was_filled_is_pointed_out(tmp_path: Path) -> None:
    full = engine(tmp_path, dump=stat_dump(tmp_path, steps=4), expert_distribution_recorder_buffer_size=4)
    assert [notice.code for notice in captured(tmp_path, full)[0].notices] == ["RING_FULL"]
    roomy = engine(tmp_path, dump=stat_dump(tmp_path, steps=3), expert_distribution_recorder_buffer_size=4)
    assert captured(tmp_path, roomy)[0].notices == ()


@pytest.mark.parametrize("overlap", [{"disable_overlap_schedule": False}, {"disable_overlap_schedule": None}])
def test_tokens_that_an_overlapping_engine_threw_away_are_pointed_out(tmp_path: Path, overlap: dict[str, Any]) -> None:
    recorded, _ = captured(tmp_path, engine(tmp_path, **overlap))
    assert [notice.code for notice in recorded.notices] == ["UNUSED_TOKENS_COUNTED"]


def test_a_dump_of_somebody_else_while_recording_is_pointed_out(tmp_path: Path) -> None:
    def start(request: BaseHTTPRequestHandler) -> None:
        write_stat(tmp_path / stat_file_name(time.time()), np.ones((1, 3, 4), dtype=np.int32))
        answer(raw=b"started\n")(request)

    recorded, _ = captured(tmp_path, {**engine(tmp_path), ("POST", START): start})
    assert [notice.code for notice in recorded.notices] == ["RECORDING_DISTURBED"]
    assert len(recorded.files) == 1


# ------------------------------------------------------------------ what is refused before anything starts


@pytest.mark.parametrize(
    ("changes", "options", "error", "words"),
    [
        ({"enable_eplb": True}, {}, EngineBusy, "--enable-eplb"),
        ({}, {"seconds": None}, BadOption, "give the seconds"),
        ({}, {"seconds": 0}, BadOption, "above 0"),
        ({}, {"seconds": float("inf")}, BadOption, "finite"),
        ({"expert_distribution_recorder_mode": "per_pass"}, {"seconds": 61}, RecordingNeedsLimit, "at most 60 s"),
        ({"expert_distribution_recorder_mode": "per_pass", "tp_size": 4}, {}, BadOption, "cannot be told apart"),
    ],
)
def test_nothing_is_started_that_cannot_end_well(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    assert posts(refused(tmp_path, error, words, engine(tmp_path, **changes), **options)) == []


def test_case_p35_a_recorder_that_is_off_is_not_even_asked(tmp_path: Path) -> None:
    info = case_json("P35", "server_info.json")
    told = refused(tmp_path, RecorderDisabled, "--expert-distribution-recorder-mode", engine(tmp_path, **info))
    assert posts(told) == []


def test_case_p32_a_detail_mode_needs_a_limit(tmp_path: Path) -> None:
    job, expect = case_json("P32", "job.json"), case("P32")["expect"]
    routes = engine(tmp_path, expert_distribution_recorder_mode=job["recorder_mode"])
    told = refused(tmp_path, RecordingNeedsLimit, "without a limit", routes, seconds=job["max_seconds"])
    assert posts(told) == []
    assert RecordingNeedsLimit("x").code == expect["error_code"]


def test_the_admin_key_is_asked_for(tmp_path: Path) -> None:
    routes = {**engine(tmp_path), ("POST", START): answer({"error": "Unauthorized"}, status=401)}
    refused(tmp_path, EngineRefused, "admin key", routes)


# ------------------------------------------------------------------ what goes wrong on the way


def test_case_p33_an_engine_that_ends_during_the_dump_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect = case("P33")["expect"]
    alive = {"now": True}

    def health(request: BaseHTTPRequestHandler) -> None:
        (answer({}) if alive["now"] else hangs_up)(request)

    def dump(request: BaseHTTPRequestHandler) -> None:
        alive["now"] = False
        answer({"error": "out of memory"}, status=500)(request)

    monkeypatch.setattr(dump_capture, "ALIVE_LIMIT_S", 0.3)
    routes = {**engine(tmp_path, dump=dump), ("GET", "/health"): health}
    told = refused(tmp_path, EngineLostDuringDump, "asked once", routes)
    assert posts(told).count(DUMP) == expect["oracle"]["max_dump_attempts"]
    assert EngineLostDuringDump("x").code == expect["error_code"]


def test_an_answer_that_is_lost_does_not_lose_the_files(tmp_path: Path) -> None:
    def dump(request: BaseHTTPRequestHandler) -> None:
        write_stat(tmp_path / stat_file_name(time.time()), np.ones((1, 3, 4), dtype=np.int32))
        hangs_up(request)

    recorded, told = captured(tmp_path, engine(tmp_path, dump=dump))
    assert [notice.code for notice in recorded.notices] == ["DUMP_ANSWER_LOST"]
    assert posts(told).count(DUMP) == 1


def test_an_engine_that_writes_elsewhere_is_noticed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "here").mkdir()
    refused(tmp_path / "here", DumpNotFound, "no new file", engine(other))


def test_an_idle_engine_leaves_nothing_to_plan_from(tmp_path: Path) -> None:
    refused(tmp_path, EmptyProfile, "no token was routed", engine(tmp_path, dump=stat_dump(tmp_path, steps=0)))
    map_LP = np.tile(np.arange(4), (3, 1))

    def no_records(now_s: float) -> None:
        for rank in range(2):
            write_per_pass(tmp_path / rank_file_name(now_s, rank), [], map_LP, rank=rank)

    routes = engine(tmp_path, dump=writes(no_records), expert_distribution_recorder_mode="per_pass")
    refused(tmp_path, EmptyProfile, "no token was routed", routes)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_whatever_ends_a_recording_stops_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    def interrupted(seconds: float) -> None:
        raise interruption

    with engine_that_answers(engine(tmp_path)) as (url, told), EngineClient(url) as client:
        monkeypatch.setattr(dump_capture.time, "sleep", interrupted)
        with pytest.raises(interruption):
            capture_dumps(client, tmp_path, seconds=1)
    assert posts(told) == [START, STOP]
    assert list(tmp_path.iterdir()) == []


def test_an_error_on_the_way_is_reported_before_one_of_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    routes = {**engine(tmp_path), ("POST", STOP): answer({}, status=500)}
    with engine_that_answers(routes) as (url, _), EngineClient(url) as client:
        monkeypatch.setattr(dump_capture.time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            capture_dumps(client, tmp_path, seconds=1)
    assert "could not be stopped" in caught.value.__notes__[0]


def test_a_recorder_that_does_not_stop_is_an_error(tmp_path: Path) -> None:
    routes = {**engine(tmp_path), ("POST", STOP): answer({}, status=500)}
    assert DUMP not in posts(refused(tmp_path, EngineFailed, "stopping the recorder", routes))


def test_a_second_recording_is_refused_and_the_first_one_goes_on(tmp_path: Path) -> None:
    second: list[Told] = []

    def start(request: BaseHTTPRequestHandler) -> None:
        second.append(refused(tmp_path, EngineBusy, "--take-over", engine(tmp_path)))
        answer(raw=b"started\n")(request)

    recorded, _ = captured(tmp_path, {**engine(tmp_path), ("POST", START): start})
    assert posts(second[0]) == []
    assert len(recorded.files) == 1


def test_a_recording_that_was_taken_over_is_neither_stopped_nor_dumped(tmp_path: Path) -> None:
    second: list[DumpCapture] = []

    def start(request: BaseHTTPRequestHandler) -> None:
        second.append(captured(tmp_path, engine(tmp_path), take_over=True)[0])
        answer(raw=b"started\n")(request)

    told = refused(tmp_path, EngineBusy, "taken over", {**engine(tmp_path), ("POST", START): start})
    assert posts(told) == [START]
    assert len(second[0].files) == 1
