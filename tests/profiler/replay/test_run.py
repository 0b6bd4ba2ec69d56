"""Starting and ending a replay engine; options that cannot be."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from dataclasses import fields
from typing import get_type_hints

import httpx
import numpy as np
import pytest

from placement.errors import (
    BadOption,
    BadTopology,
    GpusNotPositive,
    LayoutMismatch,
    RedundancyTooHigh,
    SlotCountMismatch,
    SlotsBelowExperts,
    SourceCountMismatch,
)
from placement.layout import Layout
from profiler.errors import AddressNotAvailable, DispatchCombo
from profiler.recordings import AFFINITY, recording_path
from profiler.replay import Faults, running_replay
from profiler.replay.options import ReplayKeywords, ReplayOptions
from tests.profiler.replay.traces import made_up

SERVE = """
import sys
from pathlib import Path
from profiler.readers.npz import open_npz
from profiler.readers.options import ReadOptions
from profiler.replay import serve_replay
trace = open_npz(Path(sys.argv[1]), ReadOptions())
serve_replay(trace, gpus=2, slots_per_gpu=20, port=0, on_ready=lambda url: print(url, flush=True))
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_the_program_goes_on(number):
    command = [sys.executable, "-c", SERVE, str(recording_path(AFFINITY))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "ended\n", "")


def test_the_block_ends_with_its_threads_and_its_port_free():
    before = threading.active_count()
    with running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=4) as url:
        port = int(url.rsplit(":", 1)[1])
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
    assert threading.active_count() == before
    socket.create_server(("127.0.0.1", port)).close()


def test_an_error_in_the_block_ends_the_server_too():
    with pytest.raises(ZeroDivisionError), running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=4) as url:
        raise ZeroDivisionError
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serving = running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=4, port=port)
        with pytest.raises(AddressNotAvailable, match=str(port)), serving:
            pass


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_an_address_of_another_machine_cannot_be_listened_on(host):
    serving = running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=4, host=host, admin_key="a")
    with pytest.raises(AddressNotAvailable, match="cannot be listened on"), serving:
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "203.0.113.7"])
def test_an_address_that_others_reach_needs_an_admin_key(host):
    serving = running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=4, host=host)
    with pytest.raises(BadOption, match="admin key"), serving:
        pass


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"gpus": 0, "slots_per_gpu": 4}, GpusNotPositive),
        ({"gpus": 4, "slots_per_gpu": 4, "nodes": 3}, BadTopology),
        ({"gpus": 2, "slots_per_gpu": 3}, SlotsBelowExperts),
        ({"gpus": 2, "slots_per_gpu": 9}, RedundancyTooHigh),
        ({"gpus": 2, "slots_per_gpu": 0}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "steps_per_s": -1}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "steps_per_s": float("nan")}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "steps_per_s": float("inf")}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "seed": -1}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "passes": 0}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "prefill_tokens": 0}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "dispatch": "lp"}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "admin_key": ""}, BadOption),
        ({"gpus": 2, "slots_per_gpu": 4, "dispatch": "static", "a2a": "none"}, DispatchCombo),
        ({"gpus": 2, "slots_per_gpu": 4, "homes": "measured"}, SourceCountMismatch),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_listens(options, error):
    with pytest.raises(error), running_replay(made_up([(2, 1)]), **options):
        pass


@pytest.mark.parametrize(
    ("layout", "error"),
    [
        (Layout(np.tile(np.arange(8), (3, 1)), gpus=2, experts=8), LayoutMismatch),
        (Layout(np.tile(np.arange(8), (4, 1)), gpus=4, experts=8), LayoutMismatch),
        (Layout(np.tile(np.arange(10) % 8, (4, 1)), gpus=2, experts=8), SlotCountMismatch),
    ],
)
def test_a_first_layout_of_another_shape_is_refused(layout, error):
    with pytest.raises(error), running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=4, layout=layout):
        pass


def test_faults_that_cannot_be_are_refused():
    for bad in ({"fail_chunk": 0}, {"latency_s": -1.0}, {"left_behind": ("no_tensor",)}, {"odd_rank": -1}):
        with pytest.raises(BadOption):
            Faults(**bad)


def test_the_first_layout_is_sglangs_trivial_one_or_the_one_given():
    given = np.tile(np.arange(8)[::-1], (4, 1))
    for layout, expected in ((None, np.arange(10) % 8), (Layout(given, gpus=2, experts=8), given[0])):
        slots_per_gpu = len(expected) // 2
        with running_replay(made_up([(2, 1)]), gpus=2, slots_per_gpu=slots_per_gpu, layout=layout) as url:
            shown = httpx.get(f"{url}/moeplan/placement", trust_env=False).json()["physical_to_logical_map"]
        assert shown == [expected.tolist()] * 4


def test_keys_are_in_no_text_of_the_options():
    assert "hidden" not in repr(ReplayOptions(gpus=1, slots_per_gpu=1, api_key="hidden-1", admin_key="hidden-2"))


def test_the_keywords_are_the_options():
    required = {"gpus", "slots_per_gpu"}
    by_name = {field.name: get_type_hints(ReplayOptions)[field.name] for field in fields(ReplayOptions)}
    assert get_type_hints(ReplayKeywords) == {name: kind for name, kind in by_name.items() if name not in required}
