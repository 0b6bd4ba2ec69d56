"""The pool of engines, with small HTTP servers in their place."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu import server
from tests.gpu.machine import Machine
from tests.gpu.server import EnginePool, EngineSetup, _Launched

SERVER = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnginePool:
    def launch(_machine: Machine, setup: EngineSetup) -> _Launched:
        port, log = server._free_port(), tmp_path / f"{setup.name}.log"
        log.touch()
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], start_new_session=True)
        return _Launched(setup, f"http://127.0.0.1:{port}", process, log, time.monotonic())

    monkeypatch.setattr(server, "_launch", launch)
    machine = Machine("cpu", 2, tmp_path, sys.executable, (), ())
    return EnginePool(machine, tmp_path)


def test_an_engine_that_serves_is_kept_however_long_ago_it_started(pool: EnginePool, tmp_path: Path) -> None:
    setup = EngineSetup("one", tmp_path, 0)
    with pool:
        first = pool.get(setup)
        pool._launched["one"].started_s -= 10_000
        assert pool.get(setup) is first


def test_an_engine_that_ended_is_started_anew(pool: EnginePool, tmp_path: Path) -> None:
    setup = EngineSetup("one", tmp_path, 0)
    with pool:
        first = pool.get(setup)
        process = pool._launched["one"].process
        process.kill()
        process.wait()
        assert pool.get(setup) is not first
